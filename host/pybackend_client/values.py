"""Values from a command line: text, JSON, files and standard input become tensors of the type and shape of an input."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from pybackend.errors import ServerError
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import BY_NUMPY, DATATYPES, DataType

MOST_RANDOM_ELEMENTS = 16_000_000
_NPY_MAGIC = b"\x93NUMPY"
_FILE = "bytes:"
_LONGEST_QUOTE = 60
_UINT64_MAX = 2**64 - 1


@dataclass(frozen=True)
class ModelTensor:
    """An input as the model's metadata describes it."""

    name: str
    datatype: str
    shape: tuple[int, ...]  # with the batch dimension, if the model has one; -1 for any size

    def __str__(self) -> str:
        return f"{self.datatype} {shape_text(self.shape)}"


@dataclass(frozen=True)
class Tensor:
    """An input that is ready to be sent: ``data`` holds its wire bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


def read_tensor(text: str, wanted: ModelTensor) -> Tensor:
    """Read an input.

    ``text``: a JSON value; ``@FILE.npy`` or ``@FILE.json``; ``-`` for standard input; for a BYTES input also ``@FILE``,
    whose contents become one element, or plain text. ``bytes:FILE`` is ``@FILE`` too, as for a model without a server.
    Raises ServerError if the value cannot be read, or does not fit the input; the message names both sides.
    """
    return tensor_of(_read(text, wanted), wanted)


def tensor_of(value: Any, wanted: ModelTensor) -> Tensor:
    """An input from a Python value or an array. Raises ServerError if it does not fit the input."""
    _known(wanted)
    if not isinstance(value, np.ndarray):
        value = _array_of(value, wanted)
    array = _shaped(_as_datatype(value, wanted), wanted)
    return Tensor(wanted.name, wanted.datatype, array.shape, _wire_bytes(array, wanted.datatype))


def random_tensor(wanted: ModelTensor) -> Tensor:
    """Random values for an input: open dimensions have the size 1, numbers lie between 0 and 1 or are small.

    Raises ServerError if the datatype is unknown, or they are too many.
    """
    shape = tuple(max(1, size) if size < 0 else size for size in wanted.shape)
    check_random(wanted.name, shape)
    numbers = np.random.default_rng().random(shape)
    dtype = _known(wanted).numpy
    if wanted.datatype == "BYTES":
        value: Any = np.array([b"text %d" % (100 * number) for number in numbers.ravel()], object).reshape(shape)
    elif wanted.datatype == "BF16" or dtype is None or dtype.kind == "f":
        value = numbers
    else:
        value = numbers < 0.5 if dtype.kind == "b" else (10 * numbers).astype(dtype)
    return Tensor(wanted.name, wanted.datatype, shape, _wire_bytes(_as_datatype(value, wanted), wanted.datatype))


def check_random(name: str, shape: Sequence[int]) -> None:
    """Raise ServerError if an input has more elements than random values are made for: a model may ask for any number."""
    if math.prod(shape) > MOST_RANDOM_ELEMENTS:
        raise ServerError(
            f"input '{name}' of shape {shape_text(shape)} has more than {MOST_RANDOM_ELEMENTS:,} elements, the most that get random "
            "values: name a file with its values"
        )


def shape_text(shape: Sequence[int]) -> str:
    """``[-1,4]``, as error messages of the protocol write shapes."""
    return f"[{','.join(map(str, shape))}]"


def _known(wanted: ModelTensor) -> DataType:
    if wanted.datatype not in DATATYPES:
        raise ServerError(f"input '{wanted.name}' has the datatype {wanted.datatype}, which this command does not know")
    return DATATYPES[wanted.datatype]


# --- Reading --------------------------------------------------------------------------------------------------------


def _read(text: str, wanted: ModelTensor) -> Any:
    """A Python value from JSON, or an array from a .npy file."""
    if text == "-":
        return _parsed(sys.stdin.buffer.read(), "standard input", wanted)
    is_file = text.startswith("@")
    if is_file or (text.startswith(_FILE) and wanted.datatype == "BYTES"):
        path = Path(text[1:] if is_file else text.removeprefix(_FILE))
        try:
            return file_value(path.read_bytes(), path, wanted)
        except OSError as error:
            words = "" if is_file else f". Write '{wanted.name}={json.dumps(text)}' to send these words themselves"
            raise ServerError(f"input '{wanted.name}': cannot read {path}: {error.strerror}{words}") from None
    return text_value(text, wanted)


def file_value(data: bytes, path: Path, wanted: ModelTensor) -> Any:
    """The value in a file's contents; the path's end says which kind of file it is.

    Raises ServerError if it cannot be read.
    """
    if wanted.datatype == "BYTES" and path.suffix not in {".npy", ".json"}:
        return [data]
    if path.suffix == ".csv":
        return _table(data, path, wanted)
    return _parsed(data, str(path), wanted)


def text_value(text: str, wanted: ModelTensor) -> Any:
    """The value of a JSON text, or of plain text for a BYTES input. Raises ServerError if it is neither."""
    try:
        value = json_value(text)
    except ValueError as error:
        if wanted.datatype == "BYTES" and not text.startswith(("[", '"')):
            return text
        with suppress(ValueError):
            return json_value(f"[{text}]")  # numbers with commas between them
        raise ServerError(
            f"input '{wanted.name}' wants {wanted}: {_short(text)} is not JSON ({error}). Write a JSON value such as "
            "[1, 2, 3], @FILE.npy, @FILE.json, @FILE.csv, or - for standard input"
        ) from None
    return text if wanted.datatype == "BYTES" and not isinstance(value, str | list) else value


def json_value(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError if it is none, or nested too deeply for the parser."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_npy(data: bytes) -> bool:
    """Whether a file's contents are an array saved with ``numpy.save()``."""
    return data.startswith(_NPY_MAGIC)


def _table(data: bytes, path: Path, wanted: ModelTensor) -> np.ndarray:
    """The numbers of a CSV file, one row for each line; a first line with words is its heading."""
    lines = list(csv.reader(io.StringIO(data.decode("utf-8-sig", "replace"))))
    rows: list[list[float]] = []
    for number, cells in enumerate(lines, start=1):
        try:
            row = [float(cell) for cell in cells]
        except ValueError as error:
            if number > 1:
                raise ServerError(
                    f"input '{wanted.name}': line {number} of {path} is no row of numbers: {error}"
                ) from None
            continue
        if rows and row and len(row) != len(rows[0]):
            raise ServerError(
                f"input '{wanted.name}': line {number} of {path} has {len(row)} columns, not {len(rows[0])} as the lines above it"
            )
        if row:
            rows.append(row)
    array = np.array(rows)
    dtype = _known(wanted).numpy
    whole = dtype is not None and dtype.kind in "iu" and bool((array == array.astype(np.int64)).all())
    return array.astype(np.int64) if whole else array


def _parsed(data: bytes, source: str, wanted: ModelTensor) -> Any:
    if is_npy(data):
        try:
            return _array_in(data)
        except Exception as error:  # noqa: BLE001  headers are parsed as Python, which raises anything
            raise ServerError(
                f"input '{wanted.name}': {source} cannot be read as an array: {error}. Save strings as an array of "
                "dtype S or U"
            ) from None
    try:
        return json_value(data)
    except ValueError as error:
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else error
        raise ServerError(
            f"input '{wanted.name}': {source} is neither JSON ({reason}) nor an array saved with numpy.save()"
        ) from None


def _array_in(data: bytes) -> np.ndarray:
    """The array in the contents of a .npy file; it is not made unless its bytes are there."""
    file = io.BytesIO(data)
    reader = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}.get(read_magic(file))
    if reader is None:
        raise ValueError("it is no plain array")
    shape, _, dtype = reader(file)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > len(data) - file.tell():
        raise ValueError("bytes of its elements are missing")
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return array


# --- Types ----------------------------------------------------------------------------------------------------------


def _array_of(value: Any, wanted: ModelTensor) -> np.ndarray:
    if isinstance(value, dict) or value is None:
        raise ServerError(f"input '{wanted.name}' wants {wanted}, not {_quoted(value)}")
    try:
        if wanted.datatype == "BYTES":
            return _array_of_strings(value)
        array = np.array(value)
        return array if array.dtype.kind in "biuU" else _exact(array, value)
    except ValueError as error:
        raise ServerError(
            f"input '{wanted.name}' wants {wanted}; {_quoted(value)} is not an array of that type: {error}"
        ) from None


def _exact(array: np.ndarray, value: Any) -> np.ndarray:
    """The array, or one of UINT64 if the value is whole numbers that numpy would round."""
    elements = np.array(value, object).ravel().tolist()
    if elements and all(type(each) is int and 0 <= each <= _UINT64_MAX for each in elements):
        return np.array(elements, np.uint64).reshape(array.shape)
    return array


def _array_of_strings(value: Any) -> np.ndarray:
    """An array of ``bytes`` objects; the lists give its shape."""
    shape, elements = [], [value]
    while elements and isinstance(elements[0], list):
        lengths = {len(each) if isinstance(each, list) else -1 for each in elements}
        if len(lengths) != 1:
            raise ValueError("lists of different lengths")
        shape.append(lengths.pop())
        elements = [element for each in elements for element in each]
    array = np.empty(len(elements), object)
    for index, element in enumerate(elements):
        if not isinstance(element, str | bytes):
            raise ValueError(f"{_quoted(element)} is not a string")  # noqa: TRY004  one kind for the caller
        array[index] = element.encode() if isinstance(element, str) else element
    return array.reshape(shape)


def _as_datatype(array: np.ndarray, wanted: ModelTensor) -> np.ndarray:
    """The array in the wanted datatype, if that loses nothing but a float's precision."""
    if wanted.datatype == "BYTES":
        if array.dtype.kind in "SU":
            encoded = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
            return encoded.astype(object)
        if array.dtype.kind == "O":
            return array
    elif wanted.datatype == "BF16":
        if array.dtype.kind in "iuf":
            return _bfloat16_bits(array)
    else:
        dtype = DATATYPES[wanted.datatype].numpy
        assert dtype is not None
        if array.dtype == dtype or not array.size:
            return array.astype(dtype)
        if dtype.kind == "f" and array.dtype.kind in "iuf":
            with np.errstate(over="ignore"):
                return array.astype(dtype)
        if dtype.kind in "iu" and array.dtype.kind in "iu" and _in_range(array, dtype):
            return array.astype(dtype)
    raise ServerError(f"input '{wanted.name}' wants {wanted}, not {_contents(array)}")


def _in_range(array: np.ndarray, dtype: np.dtype) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= int(array.min()) and int(array.max()) <= limits.max)


def _bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """The upper halves of the floats' bits, rounded to nearest even."""
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(array, np.float32).reshape(array.shape).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded >> 16).astype(np.uint16)


def _contents(array: np.ndarray) -> str:
    row = BY_NUMPY.get(array.dtype)
    kind = row.name if row else {"U": "strings", "S": "strings"}.get(array.dtype.kind, f"values of type {array.dtype}")
    return f"{kind} {shape_text(array.shape)}: {_short(str(array.ravel()[:20].tolist()))}"


def _wire_bytes(array: np.ndarray, datatype: str) -> bytes:
    if datatype == "BYTES":
        return encode_elements(array.ravel().tolist())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


# --- Shapes ---------------------------------------------------------------------------------------------------------


def _shaped(array: np.ndarray, wanted: ModelTensor) -> np.ndarray:
    """The array in a shape that the input accepts.

    Dimensions of size 1 are put in front, such as a batch of one. A flat list is divided among the wanted dimensions,
    if only one of them is open.
    """
    rank = len(wanted.shape)
    if array.ndim <= rank:
        padded = array.reshape((1,) * (rank - array.ndim) + array.shape)
        if _fits(padded.shape, wanted.shape):
            return padded
    if array.ndim == 1 and array.size and wanted.shape.count(-1) <= 1:
        try:
            return array.reshape(wanted.shape)
        except ValueError:
            pass
    raise ServerError(
        f"input '{wanted.name}' wants {wanted}; the given value has the shape {shape_text(array.shape)}, "
        f"{array.size} element{'' if array.size == 1 else 's'}"
    )


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(size in (-1, given) for given, size in zip(shape, wanted, strict=True))


def _quoted(value: Any) -> str:
    """A value in an error."""
    try:
        return _short(json.dumps(value))
    except RecursionError:
        return "a value that is nested too deeply"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
