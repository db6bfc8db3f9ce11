"""Inference over HTTP with arrays: what goes in and comes out, as a model's client sees it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pybackend_wire.bytes_tensor import decode_elements, encode_elements
from pybackend_wire.dtypes import BY_NUMPY, DATATYPES
from tests.support.connection import binary_body, post
from tests.support.server import Reply, ServerProcess

Input = np.ndarray | tuple[str, np.ndarray]
"""An array, or a datatype's name and the array that carries its bits (for BF16)."""


NUMBERS = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float16", "float32", "float64",
)  # fmt: skip
"""NumPy's names of all types of numbers that tensors have."""


def arrays_of_types(names: Iterable[str], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """For each NumPy type an array that has its name, with the largest and the smallest value of that type."""
    found = {}
    for name in names:
        dtype = np.dtype(name)
        if dtype.kind == "b":
            extremes = [True, False]
        else:
            limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
            extremes = [limits.max, limits.min]
        found[name] = np.resize(np.array(extremes, dtype), shape)
    return found


@dataclass(frozen=True)
class Answer:
    """The reply to an inference request; ``outputs`` are in the order in which they came."""

    status: int
    document: dict[str, Any]
    outputs: dict[str, np.ndarray]

    @property
    def error(self) -> str:
        """The message of a request that failed."""
        return self.document["error"]

    def __getitem__(self, name: str) -> np.ndarray:
        """An output; fails if the request did."""
        assert self.status == 200, self.document
        return self.outputs[name]


def infer(server: ServerProcess, model: str, inputs: Mapping[str, Input], **members: Any) -> Answer:
    """Send arrays as binary tensors and receive all outputs likewise; ``members`` join the JSON document."""
    body, headers = infer_body(inputs, **members)
    return answer_of(server.infer(model, body, headers))


def infer_message(model: str, inputs: Mapping[str, Input], **members: Any) -> bytes:
    """The same request as bytes for a bare connection."""
    body, headers = infer_body(inputs, **members)
    return post(f"/v2/models/{model}/infer", body, headers)


def infer_body(inputs: Mapping[str, Input], **members: Any) -> tuple[bytes, dict[str, str]]:
    """The body of a request, and the headers that go with it."""
    tensors, blobs = [], []
    for name, value in inputs.items():
        datatype, array = value if isinstance(value, tuple) else (_datatype(value), value)
        blob = encode_elements(array.ravel()) if datatype == "BYTES" else np.ascontiguousarray(array).tobytes()
        tensors.append(
            {
                "name": name,
                "datatype": datatype,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(blob)},
            }
        )
        blobs.append(blob)
    parameters = {"binary_data_output": True, **members.pop("parameters", {})}  # for a request that names no outputs
    if "outputs" in members:
        members["outputs"] = [_in_binary(output) for output in members["outputs"]]
    return binary_body({"inputs": tensors, "parameters": parameters, **members}, *blobs)


def _in_binary(output: dict[str, Any]) -> dict[str, Any]:
    return {**output, "parameters": {"binary_data": True, **output.get("parameters", {})}}


def answer_of(reply: Reply) -> Answer:
    """A reply's document and outputs; BF16 comes as 16-bit integers."""
    size = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    document = json.loads(reply.body[:size])
    outputs, offset = {}, size
    for output in document.get("outputs", ()):
        nbytes = output["parameters"]["binary_data_size"]
        outputs[output["name"]] = _array(output, reply.body[offset : offset + nbytes])
        offset += nbytes
    assert offset == len(reply.body)
    return Answer(reply.status, document, outputs)


def strings(*elements: str | bytes) -> np.ndarray:
    """A one-dimensional BYTES tensor."""
    array = np.empty(len(elements), object)
    array[:] = [element.encode() if isinstance(element, str) else element for element in elements]
    return array


def _datatype(array: np.ndarray) -> str:
    return "BYTES" if array.dtype == object else BY_NUMPY[array.dtype].name


def _array(output: Mapping[str, Any], data: bytes) -> np.ndarray:
    if output["datatype"] == "BYTES":
        return strings(*decode_elements(data)).reshape(output["shape"])
    dtype = DATATYPES[output["datatype"]].numpy or np.dtype(np.uint16)
    return np.frombuffer(data, dtype).reshape(output["shape"])
