"""One inference request, from the model's metadata to the response's tensors.

The server's error is an InferenceError. Inputs that do not fit the model, or a server that does not follow the
protocol, are a ServerError.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pybackend.errors import InferenceError, PybackendError, ServerError
from pybackend.spelling import closest
from pybackend_client.connection import Connection, Reply, model_path
from pybackend_client.values import ModelTensor, Tensor, random_tensor, read_tensor, shape_text
from pybackend_wire.bytes_tensor import decode_elements
from pybackend_wire.dtypes import DATATYPES

HEADER_LENGTH = "Inference-Header-Content-Length"

_SIMILAR = 0.6
"""How alike names of inputs must be; they are often short."""

_UNKNOWN = "unknown model"
"""Words in the error for a model that is not there."""

_MISSING = "missing required input"
"""Words in the error for a request that lacks inputs, of Triton's servers too."""


@dataclass(frozen=True)
class Request:
    """A request, as the command line describes it."""

    model: str
    version: str = ""  # ``""`` lets the server choose
    # by name, as :func:`pybackend_client.values.read_tensor` reads them
    inputs: Mapping[str, str | Tensor] = field(default_factory=dict)
    outputs: Sequence[str] = ()  # names; empty for all
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the request, such as ``sequence_id``
    request_id: str = ""
    fills_up: bool = False  # inputs that are not given get random values
    classes: Mapping[str, int] = field(default_factory=dict)  # the number of classes instead of scores, by output


@dataclass(frozen=True)
class Output:
    """An output of a response."""

    name: str
    datatype: str
    values: np.ndarray  # an array; BF16 as float32, BYTES as ``bytes`` objects


@dataclass(frozen=True)
class Response:
    """A response."""

    document: Mapping[str, Any]
    outputs: Sequence[Output]


def infer(connection: Connection, request: Request) -> Response:
    """Ask for tensors."""
    return decoded(_send(connection, request, binary=True))


def infer_json(connection: Connection, request: Request) -> Any:
    """Ask for a response in JSON, and return its document."""
    return json.loads(_send(connection, request, binary=False).body)


def infer_stream(connection: Connection, request: Request) -> Iterator[Any]:
    """Ask a decoupled model, by its ``generate_stream`` route.

    Yields the JSON object of each response as it arrives.
    """
    path = model_path(request.model, request.version)
    wanted = wanted_tensors(connection, request)
    document: dict[str, Any] = {"parameters": dict(request.parameters)}
    for tensor in _tensors(request, wanted):
        document[tensor.name] = flat_values(tensor, wanted[tensor.name])
    if request.request_id:
        document["id"] = request.request_id
    with _missing_inputs_described(request, wanted):
        yield from connection.events(f"{path}/generate_stream", document)


def is_decoupled(connection: Connection, request: Request) -> bool:
    """True if the model's configuration says that it may send several responses; False if the server does not tell."""
    with suppress(PybackendError, AttributeError):
        config = connection.get(f"{model_path(request.model, request.version)}/config")
        return bool(config.get("model_transaction_policy", {}).get("decoupled"))
    return False


def output_names(connection: Connection, request: Request) -> list[str]:
    """The outputs that the model is to give, according to its metadata."""
    metadata = connection.get(model_path(request.model, request.version))
    return list(request.outputs) or [str(each.get("name")) for each in metadata.get("outputs", ())]


def flat_values(tensor: Tensor, spec: ModelTensor) -> list[Any]:
    """A tensor's elements for a route that takes flat lists: it gives them to the last open dimension.

    Elements of bytes are base64 if not all of them are texts.
    """
    last = max((index for index, size in enumerate(spec.shape) if size < 0), default=-1)
    if any(size != 1 for index, size in enumerate(tensor.shape) if spec.shape[index] < 0 and index != last):
        raise ServerError(
            f"input '{tensor.name}' of shape {shape_text(tensor.shape)} cannot be sent by generate or generate_stream: they take "
            "flat lists, and of several open dimensions only the last can be larger than 1"
        )
    elements: list[Any] = array_of(tensor.data, tensor.datatype).tolist()
    if tensor.datatype != "BYTES":
        return elements
    try:
        return [each.decode() for each in elements]
    except UnicodeDecodeError:
        return [{"b64": base64.b64encode(each).decode()} for each in elements]


def _send(connection: Connection, request: Request, *, binary: bool) -> Reply:
    path = model_path(request.model, request.version)
    wanted = wanted_tensors(connection, request)
    body, header_bytes = encoded(request, _tensors(request, wanted), binary=binary)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_bytes)}
    with _missing_inputs_described(request, wanted):
        return connection.post(f"{path}/infer", body, headers)


def _models(connection: Connection) -> list[str]:
    """The names of the server's models; none if it does not tell."""
    with suppress(PybackendError, ValueError, TypeError, KeyError):
        return [str(row["name"]) for row in connection.post_json("/v2/repository/index", {})]
    return []


def _tensors(request: Request, wanted: Mapping[str, ModelTensor]) -> list[Tensor]:
    tensors = [
        read_tensor(value, _named(name, wanted, request.model)) if isinstance(value, str) else value
        for name, value in request.inputs.items()
    ]
    if request.fills_up:
        tensors += [random_tensor(each) for name, each in wanted.items() if name not in request.inputs]
    return tensors


@contextmanager
def _missing_inputs_described(request: Request, wanted: Mapping[str, ModelTensor]) -> Iterator[None]:
    """Add to a server's error about missing inputs which types and shapes they have."""
    try:
        yield
    except InferenceError as error:
        if _MISSING not in error.message:
            raise
        missing = [f"{each.name} ({each})" for name, each in wanted.items() if name not in request.inputs]
        advice = f"Not given: {', '.join(missing)}. Write NAME=VALUE, or --random for random values"
        raise InferenceError(f"{error.message.rstrip()} {advice}", error.code) from None


def wanted_tensors(connection: Connection, request: Request) -> dict[str, ModelTensor]:
    """The model's inputs by name. Raises PybackendError if the server does not tell."""
    try:
        metadata = connection.get(model_path(request.model, request.version))
    except InferenceError as error:
        if _UNKNOWN not in error.message:
            raise
        names = _models(connection)
        if request.model in names:  # it does not serve, and the server says why
            raise
        similar = closest(request.model, names)
        advice = f"Did you mean '{similar}'?" if similar else "`pybackend status` lists the models"
        raise InferenceError(f"{error.message}. {advice}", error.code) from None
    try:
        return {
            each["name"]: ModelTensor(each["name"], each["datatype"], tuple(map(int, each["shape"])))
            for each in metadata["inputs"]
        }
    except (KeyError, TypeError, ValueError):
        raise ServerError(
            f"the server describes the model in a way that is not of the v2 protocol: {metadata}"
        ) from None


def _named(name: str, wanted: Mapping[str, ModelTensor], model: str) -> ModelTensor:
    if name in wanted:
        return wanted[name]
    similar = closest(name, wanted, _SIMILAR)
    advice = f" Did you mean '{similar}'?" if similar else ""
    listed = ", ".join(f"{each.name} ({each})" for each in wanted.values()) or "none"
    raise ServerError(f"unexpected inference input '{name}' for model '{model}'.{advice} Its inputs: {listed}")


def encoded(request: Request, tensors: Sequence[Tensor], *, binary: bool) -> tuple[bytes, int]:
    """The body of a request with these tensors, and the number of bytes of its JSON part."""
    document: dict[str, Any] = {
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
                "parameters": {"binary_data_size": len(tensor.data)},
            }
            for tensor in tensors
        ],
        "parameters": {**request.parameters, "binary_data_output": binary},
    }
    if request.request_id:
        document["id"] = request.request_id
    if request.outputs:
        document["outputs"] = [
            {"name": name, "parameters": _of_output(request, name, binary)} for name in request.outputs
        ]
    header = json.dumps(document).encode()
    return b"".join([header, *(tensor.data for tensor in tensors)]), len(header)


def _of_output(request: Request, name: str, binary: bool) -> dict[str, Any]:
    count = request.classes.get(name, 0)
    return {"binary_data": binary, **({"classification": count} if count else {})}


def decoded(reply: Reply) -> Response:
    """The tensors of a response; JSON data are accepted too."""
    length = int(reply.headers.get(HEADER_LENGTH.lower(), len(reply.body)))
    document = json.loads(reply.body[:length])
    outputs, at = [], length
    for each in document.get("outputs", []):
        datatype, shape = each["datatype"], each["shape"]
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = np.array(each["data"], object if datatype == "BYTES" else None)
        else:
            values = array_of(reply.body[at : at + size], datatype)
            at += size
        outputs.append(Output(each["name"], datatype, values.reshape(shape)))
    return Response(document, outputs)


def array_of(data: bytes, datatype: str) -> np.ndarray:
    """The flat array of a tensor's wire bytes."""
    if datatype == "BYTES":
        elements = decode_elements(data)
        array = np.empty(len(elements), object)
        array[:] = elements
        return array
    if datatype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    dtype = DATATYPES[datatype].numpy
    assert dtype is not None
    return np.frombuffer(data, dtype.newbyteorder("<"))
