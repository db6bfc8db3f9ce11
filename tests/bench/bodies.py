"""The requests that are sent, and whether a server's answer to them is right.

A request here is everything that goes over the wire, head and body, so that the load generator only has to repeat it.
Before a server is measured its reply is checked once: a fast wrong answer is no result.
"""

import http.client
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench import repositories

Array = npt.NDArray[Any]

STREAMED_RESPONSES = 1_000
STRING_COUNT = 10_000
DIRECT = "add_sub, no call"
ONE_CALL = "add_sub by a BLS call"
GATHERED_CALLS = f"add_sub by {repositories.GATHERED_CALLS} BLS calls at once"
BATCHED = f"add_sub, batched, delay {repositories.QUEUE_DELAY_US} us"
ONE_STEP = "add_sub alone"
TWO_STEPS = "ensemble: add_sub, multiply"
STREAM = f"{STREAMED_RESPONSES:,} responses of {repositories.STREAMED_ELEMENTS * 4 >> 10} KB"
STRINGS = f"{STRING_COUNT:,} strings"

_LEFT = np.array([1.5, 2.25, 3.75, 4.125], np.float32)
_RIGHT = np.array([0.5, 0.25, 2.5, 1.0], np.float32)
_LENGTH = struct.Struct("<I")
_HEADER_LENGTH = "Inference-Header-Content-Length"
_REPLY_TIMEOUT_S = 60


class WrongReplyError(Exception):
    """A server did not answer what the model computes."""


@dataclass(frozen=True)
class Workload:
    """One inference request and what must come back.

    Attributes:
        name: how tables call it.
        path: the request's target.
        headers: all headers but Host and Content-Length.
        body: the request's body.
        expected: output tensors by name.
        tensor_bytes: size of the input tensors on the wire.
        in_turns: whole requests that are sent in turns instead of this one.
    """

    name: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    expected: Mapping[str, Array]
    tensor_bytes: int
    in_turns: tuple[bytes, ...] = ()

    @property
    def request(self) -> bytes:
        """The whole HTTP request."""
        headers = {"Host": "127.0.0.1", **self.headers, "Content-Length": str(len(self.body))}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def add_sub_json(model: str = repositories.ADD_SUB) -> Workload:
    """Two tensors of four numbers as JSON, answered as JSON."""
    inputs = [
        {"name": name, "shape": list(data.shape), "datatype": "FP32", "data": data.tolist()}
        for name, data in add_sub_inputs().items()
    ]
    headers = {"Content-Type": "application/json"}
    tensor_bytes = _LEFT.nbytes + _RIGHT.nbytes
    return Workload(
        "add_sub JSON", _path(model), headers, _compact({"inputs": inputs}), _sum_and_difference(), tensor_bytes
    )


def add_sub_binary(model: str = repositories.ADD_SUB) -> Workload:
    """The same two tensors as raw bytes, answered as raw bytes."""
    return _binary("add_sub binary", model, add_sub_inputs(), _sum_and_difference())


def identity_binary(size_bytes: int) -> Workload:
    """One FP32 tensor of so many bytes, there and back as raw bytes."""
    data = np.arange(size_bytes // 4, dtype=np.float32)
    return _binary(f"identity {size_name(size_bytes)}", repositories.IDENTITY, {"INPUT0": data}, {"OUTPUT0": data})


def rows_of_model(name: str, model: str, inputs: Mapping[str, Array], expected: Mapping[str, Array]) -> Workload:
    """Tensors for any model, as raw bytes."""
    return _binary(name, model, inputs, expected)


def identity_body(size_bytes: int) -> Workload:
    """What ``identity_binary`` sends: the yardstick of the same in shared memory."""
    return replace(identity_binary(size_bytes), name=f"{size_name(size_bytes)}, identity in bodies")


def identity_shared(size_bytes: int, region: str, *, view: bool) -> Workload:
    """The same tensor at the start of a region of shared memory, and its output behind it.

    Args:
        size_bytes: of the tensor.
        region: name of the region, which has at least twice that size.
        view: to a model that views its clients' memory, where the server knows of that.
    """
    model = repositories.IDENTITY_VIEW if view else repositories.IDENTITY
    part = {"shared_memory_region": region, "shared_memory_byte_size": size_bytes}
    document = {
        "inputs": [{"name": "INPUT0", "shape": [size_bytes // 4], "datatype": "FP32", "parameters": part}],
        "outputs": [{"name": "OUTPUT0", "parameters": {**part, "shared_memory_offset": size_bytes}}],
    }
    return _described(shared_name(size_bytes, view=view), model, document, {}, size_bytes)


def first_element(size_bytes: int, region: str) -> Workload:
    """A tensor of so many bytes in a region, to a model that views it and answers with its first element."""
    part = {"shared_memory_region": region, "shared_memory_byte_size": size_bytes}
    document = {
        "inputs": [{"name": "INPUT0", "shape": [size_bytes // 4], "datatype": "FP32", "parameters": part}],
        "outputs": [{"name": "OUTPUT0"}],
    }
    expected = {"OUTPUT0": np.zeros(1, np.float32)}
    return _described(first_element_name(size_bytes), repositories.FIRST_ELEMENT, document, expected, size_bytes)


def shared_name(size_bytes: int, *, view: bool) -> str:
    """How tables call :func:`identity_shared`."""
    return f"{size_name(size_bytes)}, identity in shared memory{', view' if view else ''}"


def first_element_name(size_bytes: int) -> str:
    """How tables call :func:`first_element`."""
    return f"{size_name(size_bytes)}, first element of a view"


def add_sub_direct() -> Workload:
    """What ``add_sub_binary`` sends, under another name: the yardstick of those that follow."""
    return _binary(DIRECT, repositories.ADD_SUB, add_sub_inputs(), _sum_and_difference())


def add_sub_confined(sandbox: str, model: str) -> Workload:
    """The same to a model whose sandbox is of this level."""
    return replace(add_sub_binary(model), name=confined_name(sandbox))


def bls_add_sub() -> Workload:
    """The same, to a model that calls add_sub once for it."""
    return _binary(ONE_CALL, repositories.BLS_ADD_SUB, add_sub_inputs(), _sum_and_difference())


def bls_gather() -> Workload:
    """The same, to a model that makes several calls at the same moment and waits for them all."""
    return _binary(GATHERED_CALLS, repositories.BLS_GATHER, add_sub_inputs(), _sum_and_difference())


def add_sub_batched() -> Workload:
    """The same, as a batch of one to a model that executes batches."""
    inputs = {name: data[np.newaxis] for name, data in add_sub_inputs().items()}
    expected = {name: data[np.newaxis] for name, data in _sum_and_difference().items()}
    return _binary(BATCHED, repositories.BATCHED, inputs, expected)


def one_step() -> Workload:
    """What ``add_sub_binary`` sends: the yardstick of the ensemble that begins with it."""
    return replace(add_sub_binary(), name=ONE_STEP)


def two_steps() -> Workload:
    """The same to an ensemble that multiplies sum and difference in a second step."""
    expected = {"OUTPUT0": (_LEFT + _RIGHT) * (_LEFT - _RIGHT)}
    return _binary(TWO_STEPS, repositories.ADD_SUB_MULTIPLY, add_sub_inputs(), expected)


def identity_step(size_bytes: int) -> Workload:
    """What ``identity_binary`` sends: the yardstick of a chain of such steps."""
    return replace(identity_binary(size_bytes), name=f"{size_name(size_bytes)}, identity alone")


def identity_chain(size_bytes: int) -> Workload:
    """One FP32 tensor of so many bytes through an ensemble of identity steps."""
    data = np.arange(size_bytes // 4, dtype=np.float32)
    return _binary(chain_name(size_bytes), repositories.IDENTITY_CHAIN, {"INPUT0": data}, {"OUTPUT0": data})


def stream() -> Workload:
    """Ask for a stream of responses of 1 KB, which are counted and added up on the server."""
    count = np.array([STREAMED_RESPONSES], np.float32)
    counted = np.array([STREAMED_RESPONSES, sum(range(STREAMED_RESPONSES))], np.float32)
    return _binary(STREAM, repositories.STREAM_COUNT, {"INPUT0": count}, {"OUTPUT0": counted})


def strings() -> Workload:
    """Many short byte strings of several lengths, which come back in the opposite order."""
    data = np.array([b"item %d" % (number * number) for number in range(STRING_COUNT)], np.object_)
    return _binary(STRINGS, repositories.STRINGS, {"INPUT0": data}, {"OUTPUT0": data[::-1]})


def load(model: str) -> Workload:
    return Workload(f"load of {model}", f"/v2/repository/models/{model}/load", {}, b"{}", {}, 0)


def large_calls(calls: int, call_bytes: int) -> Workload:
    """A small request that makes a model send so many tensors of so many bytes through identity, one by one."""
    name = f"{calls} BLS calls of {size_name(call_bytes)}"
    asked = np.array([calls, call_bytes // 4], np.float32)
    return _binary(name, repositories.LARGE_CALLS, {"INPUT0": asked}, {"OUTPUT0": np.array([calls], np.float32)})


def chain_name(size_bytes: int) -> str:
    """How tables call :func:`identity_chain`."""
    return f"{size_name(size_bytes)}, ensemble: {repositories.CHAINED_STEPS} x identity"


def confined_name(sandbox: str) -> str:
    """How tables call :func:`add_sub_confined`."""
    return f"add_sub, sandbox {sandbox}"


def size_name(size_bytes: int) -> str:
    """``16 MB`` for 16 * 2**20; below a megabyte in KB."""
    return f"{size_bytes >> 20} MB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KB"


def fetch(port: int, workload: Workload) -> tuple[http.client.HTTPMessage, bytes]:
    """Send one request to 127.0.0.1; returns the reply's headers and body.

    Raises:
        WrongReplyError: no reply came within a minute, or its status is not 200.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_REPLY_TIMEOUT_S)
    try:
        connection.request("POST", workload.path, workload.body, dict(workload.headers))
        reply = connection.getresponse()
        body = reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise WrongReplyError(f"{workload.name}: no reply: {error!r}") from error
    finally:
        connection.close()
    if reply.status != http.client.OK:
        raise WrongReplyError(f"{workload.name}: status {reply.status}: {body[:300]!r}")
    return reply.headers, body


def ask(port: int, workload: Workload) -> dict[str, Array]:
    """Send one request; returns the outputs.

    Raises:
        WrongReplyError: no reply came, or its status is not 200.
    """
    return _outputs(*fetch(port, workload))


def check(port: int, workload: Workload) -> int:
    """Send one request and compare the outputs; returns the size of the reply's body.

    Raises:
        WrongReplyError: no reply came, its status is not 200, or an output is missing or wrong.
    """
    headers, body = fetch(port, workload)
    outputs = _outputs(headers, body)
    for name, expected in workload.expected.items():
        if name not in outputs or not np.array_equal(outputs[name], expected):
            raise WrongReplyError(f"{workload.name}: output {name} is {outputs.get(name)}, not {expected}")
    return len(body)


def add_sub_inputs() -> dict[str, Array]:
    return {"INPUT0": _LEFT, "INPUT1": _RIGHT}


def _sum_and_difference() -> dict[str, Array]:
    return {"OUTPUT0": _LEFT + _RIGHT, "OUTPUT1": _LEFT - _RIGHT}


def _binary(name: str, model: str, inputs: Mapping[str, Array], expected: Mapping[str, Array]) -> Workload:
    raw = {tensor: _raw(data) for tensor, data in inputs.items()}
    described = [
        {
            "name": tensor,
            "shape": list(data.shape),
            "datatype": "BYTES" if data.dtype == np.object_ else "FP32",
            "parameters": {"binary_data_size": len(raw[tensor])},
        }
        for tensor, data in inputs.items()
    ]
    document = _compact({"inputs": described, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(len(document))}
    body = b"".join([document, *raw.values()])
    return Workload(name, _path(model), headers, body, expected, sum(map(len, raw.values())))


def _described(
    name: str, model: str, document: Mapping[str, Any], expected: Mapping[str, Array], size_bytes: int
) -> Workload:
    headers = {"Content-Type": "application/json"}
    return Workload(name, _path(model), headers, _compact(document), expected, size_bytes)


def _raw(data: Array) -> bytes:
    """A tensor as it goes over the wire: strings each behind their length."""
    if data.dtype != np.object_:
        return data.tobytes()
    return b"".join(_LENGTH.pack(len(string)) + string for string in data)


def _from_raw(datatype: str, raw: bytes) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(raw, np.float32)
    found: list[bytes] = []
    offset = 0
    while offset < len(raw):
        (length,) = _LENGTH.unpack_from(raw, offset)
        offset += _LENGTH.size
        found.append(raw[offset : offset + length])
        offset += length
    return np.array(found, np.object_)


def _outputs(headers: http.client.HTTPMessage, body: bytes) -> dict[str, Array]:
    """Take a v2 reply apart: a JSON document and, behind it, the bytes of the outputs that announce some."""
    document_bytes = int(headers.get(_HEADER_LENGTH, len(body)))
    outputs: Sequence[Mapping[str, Any]] = json.loads(body[:document_bytes])["outputs"]
    tensors: dict[str, Array] = {}
    offset = document_bytes
    for output in outputs:
        if "data" in output:
            data = np.array(output["data"], np.float32)
        elif "binary_data_size" not in output.get("parameters", {}):
            continue  # it is in shared memory
        else:
            size = output["parameters"]["binary_data_size"]
            data = _from_raw(output["datatype"], body[offset : offset + size])
            offset += size
        tensors[output["name"]] = data.reshape(output["shape"])
    return tensors


def _path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
