"""The requests that an analysis sends: random ones, those of a file of values, or those of a file of traces."""

from __future__ import annotations

import base64
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pybackend.errors import ServerError
from pybackend_client.connection import Connection
from pybackend_client.inference import HEADER_LENGTH, Request, encoded
from pybackend_client.trial import Request as Document
from pybackend_client.trial import Trial, answers_to
from pybackend_client.values import ModelTensor, Tensor, read_tensor
from pybackend_tools.analyzer.measurement import Target
from pybackend_wire.dtypes import BY_CONFIG_NAME, DataType

_MOST_REQUESTS = 64
"""They are sent in turns: more would only take memory."""

_ZIP = b"PK\x03\x04"
_TRACED = "TENSOR_QUEUE_INPUT"


def target_of(connection: Connection, model: str, data: Path | None) -> Target:
    """A model that the server has loaded, and requests for it.

    Raises ServerError if the model takes sequences, if the file cannot be used, or if the model refuses all requests.
    """
    trial = Trial(connection, model)
    config = trial.configuration()
    if "sequence_batching" in config:
        raise ServerError(f"model '{model}' takes sequences of requests, which `pybackend analyze` does not send")
    return target_with(trial, model, documents_for(trial, config, data))


def target_with(trial: Trial, model: str, documents: Sequence[Document]) -> Target:
    """A model and the first of the requests, which it gets in turns."""
    return Target(model, [_bytes(trial, each) for each in documents[:_MOST_REQUESTS]])


def documents_for(trial: Trial, config: Mapping[str, Any], data: Path | None) -> list[Document]:
    """The requests of a file; without one, random ones that the model answers.

    Raises ServerError if the file cannot be used, and PybackendError if the model refuses all requests.
    """
    if data is not None:
        documents = from_file(data, config)
        trial.answer(documents[0])
        return documents
    try:
        first, sizes = trial.sample(config, {})
    except ServerError as error:
        raise ServerError(str(error).replace("--sample=FILE gives one", "--data=FILE gives some")) from None
    return [request for request, _ in answers_to(trial, [first, *trial.further(config, sizes)])]


def _bytes(trial: Trial, document: Document) -> bytes:
    """A request as it is sent: in JSON to a model that may send several responses, with binary tensors to others."""
    path, call = trial.call(document)
    if call is not document:
        body, fields = json.dumps(call).encode(), "Content-Type: application/json\r\n"
        path += "_stream"
    else:
        body, length = encoded(Request(""), [_tensor(each) for each in document["inputs"]], binary=True)
        fields = f"Content-Type: application/octet-stream\r\n{HEADER_LENGTH}: {length}\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _tensor(document: Mapping[str, Any]) -> Tensor:
    wanted = ModelTensor(document["name"], document["datatype"], tuple(document["shape"]))
    return read_tensor(json.dumps(document["data"]), wanted)


def from_file(path: Path, config: Mapping[str, Any]) -> list[Document]:
    """The requests of a file for a model with this configuration.

    A trace file's; those of ``{"data": [{INPUT: VALUES, ...}, ...]}``, as perf_analyzer has them; or those of an
    ``.npz`` file with an array for each input, whose rows are the requests. Raises ServerError if it cannot be used.
    """
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise ServerError(f"cannot read {path}: {error.strerror}") from None
    try:
        return list(_documents(path, contents, config))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ServerError(f"{path} holds requests of another form: {type(error).__name__}: {error}") from None


def _documents(path: Path, contents: bytes, config: Mapping[str, Any]) -> Iterator[Document]:
    rows: Any
    if contents.startswith(_ZIP):
        rows = _rows_of_arrays(path, contents)
    else:
        try:
            found = json.loads(contents)
        except (ValueError, RecursionError) as error:
            raise ServerError(f"{path} is neither JSON nor an .npz file: {error}") from None
        if isinstance(found, list):
            yield from _from_traces(path, config["name"], found)
            return
        rows = found.get("data") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ServerError(
            f'{path} holds no requests: write {{"data": [{{"INPUT": [1, 2, 3]}}, ...]}}, or name a trace file with level TENSORS'
        )
    inputs = {each["name"]: each for each in config["input"]}
    batches = config["max_batch_size"] > 0
    for row in rows:
        for name in row:
            if name not in inputs:
                raise ServerError(
                    f"{path}: model '{config['name']}' has no input '{name}'; its inputs are {', '.join(inputs)}"
                )
        yield {"inputs": [_input(path, inputs[name], row[name], batches=batches) for name in row]}


def _rows_of_arrays(path: Path, contents: bytes) -> list[dict[str, Any]]:
    try:
        with np.load(io.BytesIO(contents), allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
            columns = {name: each.astype(str) if each.dtype.kind == "S" else each for name, each in columns.items()}
    except (ValueError, OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise ServerError(f"{path} cannot be read as an .npz file of numbers and strings: {error}") from None
    counts = {len(column) if column.ndim else 0 for column in columns.values()}
    if len(counts) != 1:
        raise ServerError(f"{path} has arrays with different numbers of rows: each row is one request")
    return [{name: column[place] for name, column in columns.items()} for place in range(counts.pop())]


def _input(path: Path, spec: Mapping[str, Any], value: Any, *, batches: bool) -> dict[str, Any]:
    """An input from a list, nested or flat, or from ``{"content": flat list, "shape": [...]}``, or ``{"b64": bytes}``; of a batch of one."""
    dims, datatype = list(spec["dims"]), BY_CONFIG_NAME[spec["data_type"]]
    if isinstance(value, dict):
        dims = value.get("shape", dims)
        value = _decoded(path, spec["name"], value["b64"], datatype) if "b64" in value else value.get("content")
    array = np.array(value, object)
    if array.shape == tuple(dims) or -1 not in dims:
        shape = dims
    elif dims.count(-1) == 1 and array.ndim == 1:
        known = int(np.prod([size for size in dims if size >= 0], dtype=int))
        shape = [array.size // known if size < 0 and known else size for size in dims]
    else:
        shape = list(array.shape)
    if int(np.prod(shape, dtype=int)) != array.size or len(shape) != len(dims):
        raise ServerError(
            f"{path}: input '{spec['name']}' wants the shape {dims}; the value has the shape {list(array.shape)}"
        )
    return {
        "name": spec["name"],
        "datatype": datatype.name,
        "shape": [1, *shape] if batches else shape,
        "data": array.ravel().tolist(),
    }


def _decoded(path: Path, name: str, text: Any, datatype: DataType) -> list[Any]:
    """The elements whose bytes are written in base 64; of BYTES, one."""
    try:
        raw = base64.b64decode(text, validate=True)
        return np.frombuffer(raw, datatype.numpy).tolist() if datatype.itemsize else [raw.decode()]
    except (TypeError, ValueError) as error:
        raise ServerError(f"{path}: the b64 of input '{name}' cannot be read: {error}") from None


def _from_traces(path: Path, model: str, fragments: list[Any]) -> Iterator[Document]:
    """The requests whose inputs were recorded whole."""
    named: dict[Any, str] = {}
    inputs: dict[Any, list[dict[str, Any]]] = {}
    for fragment in fragments:
        if not isinstance(fragment, dict):
            continue
        number = fragment.get("id")
        if "model_name" in fragment:
            named[number] = fragment["model_name"]
        if fragment.get("activity") == _TRACED:
            inputs.setdefault(number, []).append(fragment["tensor"])
    whole = [
        tensors
        for number, tensors in inputs.items()
        if named.get(number) == model and all(_is_whole(each) for each in tensors)
    ]
    yield from ({"inputs": [_recorded(each) for each in tensors]} for tensors in whole)
    if not whole:
        raise ServerError(
            f"{path} has no request to model '{model}' with all values of its inputs: trace with level=TENSORS, and small requests"
        )


def _is_whole(tensor: Mapping[str, Any]) -> bool:
    """Strings with commas cannot be told apart."""
    count = int(np.prod(_shape(tensor), dtype=int))
    return "bytes_left_out" not in tensor and (count == 1 or len(tensor["data"].split(",")) == count)


def _recorded(tensor: Mapping[str, Any]) -> dict[str, Any]:
    shape, datatype = _shape(tensor), tensor["dtype"]
    words = [tensor["data"]] if int(np.prod(shape, dtype=int)) == 1 else tensor["data"].split(",")
    if datatype == "BYTES":
        data: list[Any] = words
    elif datatype == "BOOL":
        data = [word == "1" for word in words]
    else:
        data = [int(word) if "INT" in datatype else float(word) for word in words]
    return {"name": tensor["name"], "datatype": datatype, "shape": shape, "data": data}


def _shape(tensor: Mapping[str, Any]) -> list[int]:
    return [int(size) for size in tensor["shape"].split(",") if size]
