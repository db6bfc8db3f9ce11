"""The requests that are sent, and whether a server's answer to them is right.

A request here is everything that goes over the wire, head and body, so that the load generator only has to repeat it.
Before a server is measured its reply is checked once: a fast wrong answer is no result.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench.repositories import ADD_SUB, IDENTITY

FloatArray = npt.NDArray[np.float32]

_LEFT = np.array([1.5, 2.25, 3.75, 4.125], np.float32)
_RIGHT = np.array([0.5, 0.25, 2.5, 1.0], np.float32)
_HEADER_LENGTH = "Inference-Header-Content-Length"
_REPLY_TIMEOUT_S = 60


class WrongReplyError(Exception):
    """A server answered, but not what the model computes."""


@dataclass(frozen=True)
class Workload:
    """One inference request and what must come back.

    Attributes:
        name: how tables call it.
        path: the request's target.
        headers: all headers but Host and Content-Length.
        body: the request's body.
        expected: output tensors by name.
        tensor_bytes: size of the input tensors.
    """

    name: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    expected: Mapping[str, FloatArray]
    tensor_bytes: int

    @property
    def request(self) -> bytes:
        """The whole HTTP request."""
        headers = {"Host": "127.0.0.1", **self.headers, "Content-Length": str(len(self.body))}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def add_sub_json(model: str = ADD_SUB) -> Workload:
    """Two tensors of four numbers as JSON, answered as JSON."""
    inputs = [
        {"name": name, "shape": list(data.shape), "datatype": "FP32", "data": data.tolist()}
        for name, data in _add_sub_inputs().items()
    ]
    headers = {"Content-Type": "application/json"}
    tensor_bytes = _LEFT.nbytes + _RIGHT.nbytes
    return Workload(
        "add_sub JSON", _path(model), headers, _compact({"inputs": inputs}), _sum_and_difference(), tensor_bytes
    )


def add_sub_binary(model: str = ADD_SUB) -> Workload:
    """The same two tensors as raw bytes, answered as raw bytes."""
    return _binary("add_sub binary", model, _add_sub_inputs(), _sum_and_difference())


def identity_binary(size_bytes: int) -> Workload:
    """One FP32 tensor of so many bytes, there and back as raw bytes."""
    data = np.arange(size_bytes // 4, dtype=np.float32)
    return _binary(f"identity {size_name(size_bytes)}", IDENTITY, {"INPUT0": data}, {"OUTPUT0": data})


def size_name(size_bytes: int) -> str:
    """``16 MB`` for 16 * 2**20; below a megabyte in KB."""
    return f"{size_bytes >> 20} MB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KB"


def fetch(port: int, workload: Workload) -> tuple[http.client.HTTPMessage, bytes]:
    """Send one request to 127.0.0.1; returns the reply's headers and body.

    Raises:
        WrongReplyError: the status is not 200.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_REPLY_TIMEOUT_S)
    try:
        connection.request("POST", workload.path, workload.body, dict(workload.headers))
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    if reply.status != http.client.OK:
        raise WrongReplyError(f"{workload.name}: status {reply.status}: {body[:300]!r}")
    return reply.headers, body


def check(port: int, workload: Workload) -> int:
    """Send one request and compare the outputs; returns the size of the reply's body.

    Raises:
        WrongReplyError: the status is not 200, or an output is missing or wrong.
    """
    headers, body = fetch(port, workload)
    outputs = _outputs(headers, body)
    for name, expected in workload.expected.items():
        if name not in outputs or not np.array_equal(outputs[name], expected):
            raise WrongReplyError(f"{workload.name}: output {name} is {outputs.get(name)}, not {expected}")
    return len(body)


def _add_sub_inputs() -> dict[str, FloatArray]:
    return {"INPUT0": _LEFT, "INPUT1": _RIGHT}


def _sum_and_difference() -> dict[str, FloatArray]:
    return {"OUTPUT0": _LEFT + _RIGHT, "OUTPUT1": _LEFT - _RIGHT}


def _binary(name: str, model: str, inputs: Mapping[str, FloatArray], expected: Mapping[str, FloatArray]) -> Workload:
    described = [
        {
            "name": tensor,
            "shape": list(data.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": data.nbytes},
        }
        for tensor, data in inputs.items()
    ]
    document = _compact({"inputs": described, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(len(document))}
    body = b"".join([document, *(data.tobytes() for data in inputs.values())])
    return Workload(name, _path(model), headers, body, expected, sum(data.nbytes for data in inputs.values()))


def _outputs(headers: http.client.HTTPMessage, body: bytes) -> dict[str, FloatArray]:
    """Take a v2 reply apart: a JSON document and, behind it, the bytes of the outputs that announce some."""
    document_bytes = int(headers.get(_HEADER_LENGTH, len(body)))
    outputs: Sequence[Mapping[str, Any]] = json.loads(body[:document_bytes])["outputs"]
    tensors: dict[str, FloatArray] = {}
    offset = document_bytes
    for output in outputs:
        if "data" in output:
            data = np.array(output["data"], np.float32)
        else:
            size = output["parameters"]["binary_data_size"]
            data = np.frombuffer(body, np.float32, size // 4, offset)
            offset += size
        tensors[output["name"]] = data.reshape(output["shape"])
    return tensors


def _path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
