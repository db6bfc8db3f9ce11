"""Requests and answers of ``mlflow models serve``: tables, objects and lists become a model's tensors, and its tensors predictions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import nan, prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pybackend.errors import ErrorCode, InferenceError, invalid
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor, shape_text
from pybackend.inference.validation import validate_header
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.protocol.json.infer_response import encode_document, json_values
from pybackend.protocol.json.parameters import custom_parameter
from pybackend.protocol.json.slices import decode_in_steps, weights
from pybackend.protocol.json.tensor import FLOATS, encode_values
from pybackend.protocol.steps import Steps
from pybackend_addons.mlflow.columns import columns_in
from pybackend_wire.dtypes import DATATYPES

MAX_BODY_BYTES = 6 * 1024 * 1024
"""Bound of a request's body, and of the tensors of an answer."""

_MOST_LISTS = 100_000
"""Bound of the lists and objects of a body, and of the rows of a table."""

_MOST_CELLS = 1_000_000
"""Bound of the cells of CSV: each is an object of Python, many times as large as its text."""

_MOST_COLUMNS = 20_000
"""Bound of the columns of a table, and of the members of an object."""

_LONGEST_ROW = 512 * 1024
"""Characters of a row of CSV, which is read in one go."""

_LONGEST_PARAMS = 64 * 1024
"""Characters of all lists and objects of ``params``: the model gets them as JSON."""

_MOST_PREDICTIONS = 500_000
_MOST_PARAMS = 256
_MOST_NESTING = 16
_SLICE = 16 * 1024
_FORMS = ("dataframe_split", "dataframe_records", "instances", "inputs")
_MOST_NAMED = 20

_CODES = {
    400: "BAD_REQUEST", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "RESOURCE_DOES_NOT_EXIST",
    429: "REQUEST_LIMIT_EXCEEDED", 501: "NOT_IMPLEMENTED", 503: "TEMPORARILY_UNAVAILABLE",
}  # fmt: skip
"""MLflow's codes of errors, by status."""


class _Table(NamedTuple):
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


_Given = _Table | dict[str, Any] | list[Any]


def parse_invocation(body: bytes, signature: ModelSignature, version: str, *, is_csv: bool) -> Steps[InferenceRequest]:
    """The request in a body, in steps of a few milliseconds. It has passed ``validate_header``."""
    request = InferenceRequest(signature.model_name, version)
    if is_csv:
        given: _Given = yield from _csv_table(body)
    else:
        document = yield from _document(body)
        request.parameters = _parameters(document.pop("params", None))
        given = yield from _given(document)
    for name, values in (yield from _by_input(given, signature)).items():
        request.inputs.append((yield from _tensor(signature, signature.inputs[name], values, is_text=is_csv)))
    validate_header(request, signature)
    return request


# Bodies


def _csv_table(body: bytes) -> Steps[_Table]:
    if max(body.count(b"\n"), body.count(b"\r")) > _MOST_LISTS or body.count(b",") > _MOST_CELLS:
        raise invalid(
            f"the body has more than {_MOST_LISTS} lines or {_MOST_CELLS} cells: use /infer with binary tensors"
        )
    try:
        lines = _Lines(body)
        reader = csv.reader(lines, strict=True)
        columns = next(reader, [])
        rows = []
        lines.row_characters = since = 0
        for row in reader:
            if row:
                rows.append([cell or None for cell in row])
            since += lines.row_characters
            lines.row_characters = 0
            if since > _SLICE:
                since = 0
                yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise invalid(f"the body is no CSV in UTF-8: {error}") from None
    return (yield from _checked_table(columns, rows))


class _Lines:
    """The lines of a body, for a reader that takes as many of them as a row has."""

    def __init__(self, body: bytes) -> None:
        self.row_characters = 0
        self._text = io.TextIOWrapper(io.BytesIO(body), "utf-8-sig", newline="")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(_LONGEST_ROW + 1)
        if not line:
            raise StopIteration
        self.row_characters += len(line)
        if self.row_characters > _LONGEST_ROW:
            raise invalid(f"a row of the table has more than {_LONGEST_ROW} characters: use /infer with binary tensors")
        return line


def _document(body: bytes) -> Steps[dict[str, Any]]:
    for weight in weights(body):
        if weight.containers > _MOST_LISTS:
            raise invalid(f"the body has more than {_MOST_LISTS} lists and objects: use /infer with binary tensors")
        yield
    document = yield from decode_in_steps(body, _MOST_COLUMNS)
    if not isinstance(document, dict):
        raise invalid(f"the body must be a JSON object with one of {', '.join(_FORMS)}")
    return document


def _parameters(params: Any) -> dict[str, ParameterValue] | None:
    if params is None:
        return None
    if not isinstance(params, dict) or len(params) > _MOST_PARAMS:
        raise invalid(f"'params' must be an object with up to {_MOST_PARAMS} members")
    found: dict[str, ParameterValue] = {}
    left = _LONGEST_PARAMS
    for name, value in params.items():
        if isinstance(value, list | dict):
            text = _bounded_text(value, left)
            left -= len(text)
            found[name] = custom_parameter(name, text)
        elif value is not None:
            found[name] = custom_parameter(name, value)
    return found or None


def _bounded_text(value: Any, most_characters: int) -> str:
    """The JSON of a value, made piece by piece so that a long one ends at the bound."""
    pieces, length = [], 0
    for piece in json.JSONEncoder().iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > most_characters:
            raise invalid(f"the lists and objects of 'params' have more than {_LONGEST_PARAMS} characters as JSON")
    return "".join(pieces)


def _given(document: dict[str, Any]) -> Steps[_Given]:
    named = [name for name in _FORMS if name in document]
    if len(named) != 1:
        raise invalid(
            f"the body must have exactly one of {', '.join(_FORMS)}; it has {_few(list(islice(document, _MOST_NAMED)))}"
        )
    (form,), value = named, document[named[0]]
    if form == "dataframe_split":
        if not isinstance(value, dict) or not isinstance(value.get("data"), list):
            raise invalid('\'dataframe_split\' must be an object: {"columns": ["a", "b"], "data": [[1, 2], [3, 4]]}')
        rows = value["data"]
        columns = value.get("columns")
        if columns is None:
            columns = range(len(rows[0]) if rows and isinstance(rows[0], list) else 0)
        elif not isinstance(columns, list):
            raise invalid("'columns' of 'dataframe_split' must be a list of names")
        _check_column_count(len(columns))
        if any(isinstance(each, list | dict) for each in columns):
            raise invalid("'columns' of 'dataframe_split' must be a list of names, without lists and objects within")
        return (yield from _checked_table([str(each) for each in columns], rows))
    if form == "dataframe_records":
        if not isinstance(value, list):
            raise invalid(_RECORDS_TEXT)
        return (yield from _of_records(value))
    if form == "instances" and not isinstance(value, list):
        raise invalid("'instances' must be a list with a member for each row")
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return (yield from _of_records(value))
    return value if isinstance(value, list | dict) else [value]


_RECORDS_TEXT = "'dataframe_records' must be a list of objects, one for each row"


def _of_records(records: Sequence[Any]) -> Steps[_Table]:
    columns: dict[str, Any] = {}
    since = 0
    for record in records:
        if not isinstance(record, dict):
            raise invalid(_RECORDS_TEXT)
        columns.update(record)
        _check_column_count(len(columns))
        since += 1 + len(record)
        if since > _SLICE:
            since = 0
            yield
    if len(columns) * len(records) > MAX_BODY_BYTES:
        raise invalid(f"the rows of the table have {len(columns)} different columns: write it as 'dataframe_split'")
    rows = []
    for part in _slices(records, len(columns)):
        rows += [[record.get(name) for name in columns] for record in part]
        yield
    return _Table(list(columns), rows)


def _slices(rows: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    """Parts of the rows with as many cells as a step does."""
    step = _SLICE // max(width, 1) + 1
    return (rows[start : start + step] for start in range(0, len(rows), step))


def _check_column_count(count: int) -> None:
    if count > _MOST_COLUMNS:
        raise invalid(f"the table has more than {_MOST_COLUMNS} columns: use /infer with binary tensors")


def _checked_table(columns: Sequence[str], rows: Sequence[Any]) -> Steps[_Table]:
    _check_column_count(len(columns))
    if len(set(columns)) < len(columns):
        raise invalid("two columns of the table have the same name")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list) or len(row) != len(columns):
            what = f"{len(row)} values" if isinstance(row, list) else "no list of values"
            raise invalid(f"row {number} of the table has {what}, and there are {len(columns)} columns")
        if number % _SLICE == 0:
            yield
    return _Table(columns, rows)


# Inputs


def _by_input(given: _Given, signature: ModelSignature) -> Steps[dict[str, Any]]:
    """The values of each input that is given. Columns that the model does not know are left out, as MLflow does."""
    inputs = signature.inputs
    if not inputs:
        return {}
    if isinstance(given, dict):
        if not inputs.keys().isdisjoint(given):
            return {name: _listed(given[name]) for name in inputs if name in given}
        given = yield from _of_columns(given)
    if isinstance(given, list):
        if signature.required_input_count <= 1 or len(inputs) == 1:
            return {next(iter(inputs)): given}
        width = len(given[0]) if given and isinstance(given[0], list) else 0
        _check_column_count(width)
        given = yield from _checked_table([str(each) for each in range(width)], given)
    if len(inputs) == 1 and next(iter(inputs)) not in given.columns:
        return {next(iter(inputs)): (yield from _matrix(given, signature))}
    return (yield from _columns(_named(given, signature), signature))


def _named(table: _Table, signature: ModelSignature) -> _Table:
    """The table with the inputs' names, if its own are numbers: all inputs, or those that are required."""
    inputs = signature.inputs
    if inputs.keys().isdisjoint(table.columns) and _are_numbers(table.columns):
        for names in (list(inputs), [name for name, each in inputs.items() if not each.optional]):
            if len(names) == len(table.columns):
                return _Table(names, table.rows)
    return table


def _columns(given: _Table, signature: ModelSignature) -> Steps[dict[str, Any]]:
    inputs = signature.inputs
    found = {}
    for place, name in enumerate(given.columns):
        if name in inputs:
            values = [row[place] for row in given.rows]
            if not inputs[name].optional or any(value is not None for value in values):
                found[name] = values
            yield
    if not found:
        raise invalid(
            f"the table has the columns {_few(given.columns)}, and model '{signature.model_name}' has the inputs "
            f"{_few(list(inputs))}"
        )
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _of_columns(given: Mapping[str, Any]) -> Steps[_Table]:
    columns = [_listed(value) for value in given.values()]
    if len({len(each) for each in columns}) > 1:
        raise invalid("the lists of 'inputs' have different lengths")
    if columns and len(columns[0]) > _MOST_LISTS:
        raise invalid(f"the lists of 'inputs' have more than {_MOST_LISTS} rows: use /infer with binary tensors")
    rows, left = [], zip(*columns, strict=True)
    while part := list(islice(left, _SLICE // max(len(columns), 1) + 1)):
        rows += part
        yield
    return _Table(list(given), rows)


def _are_numbers(columns: Sequence[str]) -> bool:
    """Whether the columns have no names: pandas numbers them."""
    return list(columns) == [str(each) for each in range(len(columns))]


def _matrix(table: _Table, signature: ModelSignature) -> Steps[Sequence[Any]]:
    """The rows of a table for a model with one input, with the columns in the model's order."""
    names = columns_in(signature)
    if not names or table.columns == names or (_are_numbers(table.columns) and len(table.columns) == len(names)):
        return table.rows
    place_of = {name: place for place, name in enumerate(table.columns)}
    lacking = [name for name in names if name not in place_of]
    if lacking:
        raise invalid(f"the table lacks the columns {_few(lacking)} of model '{signature.model_name}'")
    places = [place_of[name] for name in names]
    rows = []
    for part in _slices(table.rows, len(places)):
        rows += [[row[place] for place in places] for row in part]
        yield
    return rows


def _few(names: Sequence[str]) -> str:
    return ", ".join(f"'{name[:100]}'" for name in names[:_MOST_NAMED]) or "none"


# Tensors


def _tensor(
    signature: ModelSignature, expected: TensorSignature, values: Sequence[Any], *, is_text: bool
) -> Steps[InputTensor]:
    nested, elements = yield from _flat(expected.name, values)
    dims = (-1, *expected.dims) if signature.max_batch_size else expected.dims
    for shape in (nested, [*nested, *[1] * (len(dims) - len(nested))], [1, *nested]):
        if len(shape) == len(dims) and all(dim in {-1, size} for dim, size in zip(dims, shape, strict=True)):
            break
    else:
        raise invalid(
            f"input '{expected.name}' has values of the shape {shape_text(nested)}, and model '{signature.model_name}' takes "
            f"{shape_text(dims)}"
        )
    read = _reader(expected)
    parts = []
    for start in range(0, len(elements), _SLICE):
        part = elements[start : start + _SLICE]
        if is_text:
            part = [_from_text(expected.datatype, cell) for cell in part]
        try:
            parts.append(encode_values(expected.datatype, read(part)))
        except UnicodeEncodeError:
            raise invalid(f"input '{expected.name}' has text that is no Unicode") from None
        yield
    return InputTensor(expected.name, expected.datatype, shape, b"".join(parts))


def _flat(name: str, values: Sequence[Any]) -> Steps[tuple[list[int], Sequence[Any]]]:
    """The shape of nested lists, and their elements in order."""
    shape = [len(values)]
    while values and isinstance(values[0], list | tuple):
        width = len(values[0])
        shape.append(width)
        if len(shape) > _MOST_NESTING:
            raise invalid(f"input '{name}' has lists within {_MOST_NESTING} others")
        flat: list[Any] = []
        for part in _slices(values, width):
            if any(not isinstance(each, list | tuple) or len(each) != width for each in part):
                raise invalid(f"input '{name}' has lists of different lengths")
            flat.extend(chain.from_iterable(part))
            yield
        values = flat
    return shape, values


_Reader = Callable[[Sequence[Any]], Sequence[Any]]


def _from_text(datatype: str, cell: str | None) -> Any:
    """The value in a cell of CSV; the cell itself if its text has another datatype."""
    if cell is None or datatype == "BYTES":
        return cell
    if datatype == "BOOL":
        return _TRUTHS.get(cell, cell)
    try:
        is_whole = datatype not in FLOATS and cell.lstrip("+-").isdigit() and len(cell) <= 20
        return int(cell) if is_whole else float(cell)
    except ValueError:
        return cell


_TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def _reader(expected: TensorSignature) -> _Reader:
    """Reads values for an input: those that MLflow's types hold without loss."""
    datatype = expected.datatype
    if datatype in FLOATS:
        return lambda part: [_float(expected, each) for each in part]
    if datatype == "BOOL":
        return lambda part: [_truth(expected, each) for each in part]
    if datatype == "BYTES":
        return lambda part: [_text(expected, each) for each in part]
    dtype = DATATYPES[datatype].numpy
    assert dtype is not None
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    return lambda part: [_whole(expected, each, least, most) for each in part]


def _float(expected: TensorSignature, value: Any) -> float:
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]
    if value is None:
        return nan
    if kind is int:
        try:
            return float(value)
        except OverflowError:
            pass
    raise _misfit(expected, value)


def _whole(expected: TensorSignature, value: Any, least: int, most: int) -> int:
    number = int(value) if type(value) is float and value.is_integer() else value
    if type(number) is not int or not least <= number <= most:
        raise _misfit(expected, value)
    return number


def _truth(expected: TensorSignature, value: Any) -> bool:
    if type(value) is not bool:
        raise _misfit(expected, value)
    return value


def _text(expected: TensorSignature, value: Any) -> str:
    if not isinstance(value, str):
        raise _misfit(expected, value)
    return value


def _misfit(expected: TensorSignature, value: Any) -> InferenceError:
    text = "an empty value" if value is None else repr(value)[:100]
    return invalid(f"input '{expected.name}' takes {expected.datatype}, and {text} is none")


# Answers


def predictions(response: InferenceResponse) -> bytes:
    """The answer: a value for each row of a model with one output, an object for each row of one with several."""
    nbytes = sum(len(tensor.data) for tensor in response.outputs)
    count = sum(prod(tensor.shape) for tensor in response.outputs)
    if nbytes > MAX_BODY_BYTES or count > _MOST_PREDICTIONS:
        raise InferenceError(
            f"the model's outputs have {count} values in {nbytes} bytes, and invocations send at most {_MOST_PREDICTIONS} in "
            f"{MAX_BODY_BYTES}: use /infer with binary tensors",
            ErrorCode.UNSUPPORTED,
        )
    outputs: dict[str, Any] = {}
    for tensor in response.outputs:
        values, shape = json_values(tensor, tensor.data, may_be_binary=False), list(tensor.shape)
        is_column = len(values) == (shape[0] if shape else 1)
        outputs.setdefault(tensor.name, list(values) if is_column else _nested(values, shape))
    found: Any = outputs
    if len(outputs) == 1:
        (found,) = outputs.values()
    elif all(each and not isinstance(each[0], list) for each in outputs.values()) and _are_rows(response):
        found = [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
    return encode_document({"predictions": found}, may_hold_nan=False)


def _are_rows(response: InferenceResponse) -> bool:
    return len({tuple(tensor.shape[:1]) for tensor in response.outputs}) == 1


def _nested(values: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    rest = prod(shape[1:])
    if len(shape) < 2:
        return list(values)
    return [_nested(values[start : start + rest], shape[1:]) for start in range(0, shape[0] * rest, rest or 1)]


def mlflow_error(message: str, status: int) -> bytes:
    """The body of an error."""
    code = _CODES.get(status, "INTERNAL_ERROR" if status >= 500 else "BAD_REQUEST")
    return msgspec.json.encode({"error_code": code, "message": message.encode("utf-8", "replace").decode()})
