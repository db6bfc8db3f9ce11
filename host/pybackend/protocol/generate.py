"""The generate extension: one JSON object whose members are a model's inputs and parameters, and one object per response.

Used by the routes ``generate`` and ``generate_stream``. Values take their datatype and shape from the model's signature. A form is
the object that has a member for each name of its parts; what it has for inputs of bytes is taken as it is.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import prod
from operator import add
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from pybackend.errors import ErrorCode, InferenceError, invalid
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import validate_header
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.protocol.documents.metadata import encode_error
from pybackend.protocol.json.document import parse_document, type_error
from pybackend.protocol.json.infer_document import flatten
from pybackend.protocol.json.infer_response import encode_document, json_values
from pybackend.protocol.json.large_request import SlicedData
from pybackend.protocol.json.outline import (
    LARGEST_SKELETON_BYTES,
    Form,
    Outline,
    outline_in_steps,
)
from pybackend.protocol.json.parameters import custom_parameter
from pybackend.protocol.json.slices import Weight, weights
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.steps import Steps
from pybackend.spelling import closest
from pybackend_wire.bytes_tensor import encode_elements

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Bound of a request's body, and of the tensors of one response."""

MOST_MEMBERS = 1024
"""Bound of the inputs and parameters of one request."""

PARAMETERS = "parameters"

_FORM = Form(2, re.compile(rb":[ \t\r\n]*\Z"), MAX_BODY_BYTES)
"""The data of an input is an array beside it."""

_NO_LIMITS = BodyLimits(2**62)
"""The body bounds its inputs, and the error for one that is too large names both sizes."""

_JSON_BEGIN = re.compile(rb'[ \t\r\n]*(?:[{\["]|-?(?:[0-9]|NaN|Inf)|true|false|null)')
_BEHIND_BRACKETS = re.compile(rb"[ \t\r\n\[]*")

BASE64 = "b64"
"""The only member of an object that stands for an element of bytes."""

_BASE64_SLICE = 256 * 1024
"""Characters decoded at a time: about a millisecond. A multiple of four."""

_members = msgspec.json.Decoder(dict[str, Raw]).decode
_value = msgspec.json.Decoder().decode
_raw = msgspec.json.Decoder(Raw).decode


class FormPart(NamedTuple):
    """A part of a form."""

    name: str
    data: bytes


def parse_form(
    parts: Iterable[FormPart], signature: ModelSignature, model_version: str, limits: BodyLimits
) -> Steps[InferenceRequest]:
    """The request in a form, as :func:`parse_generate` has it."""
    files: dict[str, list[bytes]] = {}
    texts: dict[str, list[bytes]] = {}
    for name, data in parts:
        expected = signature.inputs.get(name)
        kind = files if expected is not None and expected.datatype == "BYTES" else texts
        kind.setdefault(name, []).append(data)
    nbytes = sum(len(text) for same in texts.values() for text in same)
    if nbytes > LARGEST_SKELETON_BYTES:
        raise invalid(
            f"the form has {nbytes} bytes for parameters and for inputs that take no bytes, and at most "
            f"{LARGEST_SKELETON_BYTES} can be: use /infer"
        )
    members = {name: _form_value(name, same, signature) for name, same in texts.items()}
    return parse_generate(msgspec.json.encode(members), signature, model_version, limits, files)


def _form_value(name: str, texts: list[bytes], signature: ModelSignature) -> Raw | str:
    """The member of the JSON object that the parts of one name are."""
    values = [value for value in map(_json_value, texts) if value is not None]
    expected = signature.inputs.get(name)
    if expected is not None:
        if len(values) < len(texts):
            raise invalid(
                f"part '{name}' of the form is no JSON: input '{name}' takes {expected.datatype}, such as 1 or [1, 2]"
            )
        return values[0] if len(values) == 1 else Raw(b"[%b]" % b",".join(bytes(value) for value in values))
    if len(texts) > 1:
        raise invalid(f"input '{name}' already exists in request: only parts for inputs may come several times")
    if name == PARAMETERS:
        if not values:
            raise invalid(f"part '{PARAMETERS}' of the form is no JSON object")
        return values[0]
    if name != "id" and values and bytes(values[0])[:1] not in b'"[{n':
        return values[0]  # a number or a boolean
    try:
        return texts[0].decode()
    except UnicodeDecodeError:
        near = _meant(name, signature.inputs)
        raise invalid(f"part '{name}' of the form is no text, and only inputs of BYTES take others.{near}") from None


def _json_value(text: bytes) -> Raw | None:
    """The JSON value that a text is; None if it is none."""
    try:
        return _raw(text.strip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def parse_generate(
    body: bytes,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    files: Mapping[str, list[bytes]] | None = None,
) -> Steps[InferenceRequest]:
    """The request in a body, in steps of a few milliseconds. It has passed ``validate_header``.

    ``files`` are elements of inputs of bytes that came beside the JSON, by the names of these inputs.
    """
    limits.check_json(len(body))
    if PARAMETERS in signature.inputs:
        raise invalid(
            "Keyword 'parameters' for nested schema also given as input tensor name. Rename the input, or use /infer"
        )
    if not _JSON_BEGIN.match(body):
        _refuse_no_json(body, signature)
    outline = yield from outline_in_steps(body, _FORM)
    member_count = yield from _weigh(outline.skeleton)
    request = InferenceRequest(signature.model_name, model_version)
    for name, elements in (files or {}).items():
        wire = encode_elements(elements)
        count = len(elements)
        request.inputs.append(_tensor(signature.inputs[name], [wire], [count], count, len(wire), signature, limits))
        yield
    custom: dict[str, ParameterValue] = {}
    for name, text, is_nested in _flat_members(outline, member_count):
        expected = signature.inputs.get(name)
        if expected is None:
            value = _decoded(text)
            if name == "id" and type(value) is str:
                request.id = value
            custom[name] = _parameter(name, value, signature, is_nested=is_nested)
            continue
        if any(tensor.name == name for tensor in request.inputs):
            raise invalid(f"input '{name}' already exists in request")
        request.inputs.append((yield from _input(expected, body, outline, text, signature, limits)))
    request.parameters = custom or None
    _check(request, custom, signature)
    return request


def _check(request: InferenceRequest, custom: Iterable[str], signature: ModelSignature) -> None:
    """Validate the request, and name the input that a member was probably meant to be."""
    try:
        validate_header(request, signature)
    except InferenceError as error:
        given = {tensor.name for tensor in request.inputs}
        lacking = [name for name in signature.inputs if name not in given]
        advice = "".join(_meant(name, lacking) for name in custom)
        if not advice:
            raise
        raise InferenceError(f"{error.message}{advice}", error.code) from None


def _meant(name: str, inputs: Iterable[str]) -> str:
    near = closest(name, inputs)
    return f" There is no input '{name}', did you mean '{near}'?" if near else ""


def _parameter(name: str, value: Any, signature: ModelSignature, *, is_nested: bool) -> ParameterValue:
    try:
        return custom_parameter(name, value)
    except InferenceError as error:
        prefix = f"Converting keyword: '{PARAMETERS}': " if is_nested else ""
        raise InferenceError(f"{prefix}{error.message}{_meant(name, signature.inputs)}", error.code) from None


def _weigh(skeleton: bytes) -> Steps[int]:
    """Count the members of all objects, and refuse more than anybody sends, before the document is parsed in one go.

    Texts may be long. Their number, and the bytes outside of them, decide how long the parser takes.
    """
    weight = Weight()
    for weight in weights(skeleton):
        if (
            weight.plain_bytes > LARGEST_SKELETON_BYTES
            or weight.members > MOST_MEMBERS
            or weight.texts > 4 * MOST_MEMBERS
        ):
            raise invalid(
                f"the body has too much beside its texts and its inputs' lists: at most {MOST_MEMBERS} members and "
                f"{LARGEST_SKELETON_BYTES} bytes can be. Give large inputs as lists beside '{PARAMETERS}', or use /infer"
            )
        yield
    return weight.members


def _flat_members(outline: Outline, count: int) -> Iterator[tuple[str, Raw, bool]]:
    """The members of the object, and those of its member ``parameters``: name, text, and whether ``parameters`` has it.

    ``count`` is the number of members in the text: more than the parser finds if some are repeated.
    """
    members = _object(outline)
    objects = {name: _members(text) for name, text in members.items() if bytes(memoryview(text)[:1]) == b"{"}
    if count > len(members) + sum(map(len, objects.values())):
        _refuse_repeated(outline.skeleton)
    for name, text in members.items():
        if name in {"id", PARAMETERS} and bytes(memoryview(text)[:1]) == b"n":
            continue  # null: some clients write it for what they leave out
        if name != PARAMETERS:
            yield name, text, False
            continue
        if name not in objects:
            raise InferenceError(
                f"Expected JSON object for keyword: '{PARAMETERS}': its members become inputs and parameters like those "
                "beside it"
            )
        for name_within, value in objects[name].items():
            yield name_within, value, True


def _object(outline: Outline) -> dict[str, Raw]:
    try:
        return _members(outline.skeleton)
    except msgspec.ValidationError:
        raise InferenceError("Expected a JSON object: its members are the model's inputs and parameters") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        parse_document(outline.skeleton, outline.offset)  # finds the mistake and its place
        raise InferenceError("failed to parse the request JSON buffer: NaN and infinity are no JSON") from None


def _refuse_no_json(body: bytes, signature: ModelSignature) -> None:
    """Refuse a body that is something else, such as a file, and name the ways that files take."""
    name = next((each.name for each in signature.inputs.values() if each.datatype == "BYTES"), None)
    ways = f', bytes as {{"{name}": {{"{BASE64}": "..."}}}}, or a form: curl -F {name}=@FILE' if name else ""
    place = len(body) - len(body.lstrip())
    reason = "Invalid value." if place < len(body) else "The document is empty."
    raise InferenceError(
        f"failed to parse the request JSON buffer: {reason} at {place}. generate takes a JSON object whose members are the "
        f"model's inputs{ways}"
    )


def _refuse_repeated(text: bytes) -> None:
    """Refuse an object that has two members of one name: the parser would take the last one."""

    def distinct(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            name = next(name for at, name in enumerate(names) if name in names[:at])
            raise invalid(f"input '{name[:200]}' already exists in request")

    with suppress(ValueError):  # a number that Python does not read; names come before it all the same
        json.loads(text, object_pairs_hook=distinct, parse_int=str, parse_float=str)


def _decoded(text: Raw) -> Any:
    return _value(text) if bytes(memoryview(text)[:1]) not in {b"[", b"{"} else []


def _input(
    expected: TensorSignature,
    body: bytes,
    outline: Outline,
    text: Raw,
    signature: ModelSignature,
    limits: BodyLimits,
) -> Steps[InputTensor]:
    document, span = _place(body, outline, text)
    begin, end = span
    behind = _BEHIND_BRACKETS.match(document, begin)
    if expected.datatype == "BYTES" and behind is not None and document[behind.end() : behind.end() + 1] == b"{":
        nested, elements = yield from _decoded_elements(document[begin:end], begin, expected.name)
        wire = encode_elements(elements)
        return _tensor(expected, [wire], nested, len(elements), len(body), signature, limits)
    values = SlicedData(document, span, expected.name, expected.datatype, None)
    try:
        pieces = yield from values.encode_in_steps(_NO_LIMITS)
    except UnicodeEncodeError:
        raise type_error(expected.name, "invalid Unicode as string") from None
    return _tensor(expected, pieces, values.shape, values.count, len(body), signature, limits)


def _tensor(
    expected: TensorSignature,
    pieces: list[bytes],
    nested: list[int],
    count: int,
    body_bytes: int,
    signature: ModelSignature,
    limits: BodyLimits,
) -> InputTensor:
    """An input, whose elements have this wire form and lay in lists of this shape."""
    nbytes = sum(map(len, pieces))
    if nbytes > limits.max_input_size_bytes:
        raise invalid(
            f"request size of {body_bytes} bytes with input '{expected.name}' of size {nbytes} bytes exceeds the "
            f"maximum allowed input size of {limits.max_input_size_bytes}. Use --http-max-input-size to increase the "
            "limit."
        )
    dims = (-1, *expected.dims) if signature.max_batch_size else expected.dims
    shape = _shape(expected.name, dims, nested, count)
    return InputTensor(expected.name, expected.datatype, shape, b"".join(pieces))


def _decoded_elements(text: bytes, place: int, name: str) -> Steps[tuple[list[int], list[bytes]]]:
    """The shape and the elements of a list of objects with base64; the text begins at this place of the document."""
    yield from _weigh(text)
    try:
        value = _value(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        value = parse_document(text, partial(add, place))
    flat: list[Any] = []
    flatten(value, 1, flat)
    elements = []
    for element in flat:
        if type(element) is not dict or list(element) != [BASE64] or type(element[BASE64]) is not str:
            raise invalid(
                f'input \'{name}\' mixes objects with others: each element is {{"{BASE64}": "..."}}, or each is a text'
            )
        elements.append((yield from _from_base64(element[BASE64], name)))
    nested = []
    while type(value) is list:
        nested.append(len(value))
        value = value[0] if value else None
    return nested, elements


def _from_base64(text: str, name: str) -> Steps[bytes]:
    pieces = []
    for begin in range(0, len(text), _BASE64_SLICE):
        part = text[begin : begin + _BASE64_SLICE]
        try:
            if "=" in part and begin + len(part) < len(text):
                raise binascii.Error
            pieces.append(binascii.a2b_base64(part, strict_mode=True))
        except ValueError:
            raise invalid(
                f"input '{name}' is no base64 (RFC 4648, section 4): without line breaks, and without \"data:...,\" before it"
            ) from None
        yield
    return b"".join(pieces)


def _place(body: bytes, outline: Outline, text: Raw) -> tuple[bytes, tuple[int, int]]:
    """The document with an input's list, and where it is there. A single value is a list of one."""
    plain = bytes(text)
    if not plain.startswith(b"["):
        return b"[%b]" % plain, (0, len(plain) + 2)
    if plain.startswith(b"[%d," % outline.token):
        return body, outline.spans[_value(text)[1]]
    return plain, (0, len(plain))


def _shape(name: str, dims: tuple[int, ...], nested: list[int], count: int) -> list[int]:
    """The shape of an input: that of nested lists if the model takes it, else its elements in the model's dimensions.

    Fixed dimensions are kept, and the last variable one takes what they leave over. The batch dimension may be left
    out.
    """
    if len(nested) > 1 and prod(nested) == count:
        for given in (nested, [1, *nested]):
            if len(given) == len(dims) and all(dim in {-1, size} for dim, size in zip(dims, given, strict=True)):
                return given
    shape, left = [], count
    for dim in reversed(dims):
        size = left if dim == -1 else dim
        if size == 0 or left % size:
            left = 0
            break
        shape.append(size)
        left //= size
    if left != 1:
        text = f"[{','.join(map(str, dims))}]"
        what = f"{count} elements" if len(nested) < 2 else f"lists of the shape [{','.join(map(str, nested))}]"
        raise invalid(
            f"The schema can not convert input '{name}' to tensor with proper shape: {what} do not fit {text}"
        )
    return shape[::-1]


def generate_document(response: InferenceResponse) -> bytes:
    """The JSON object for one response, or for the error in it.

    Members are sorted by name, NaN and infinities are null.
    """
    if response.error is not None:
        return encode_error(response.error.message)
    nbytes = sum(len(tensor.data) for tensor in response.outputs)
    if nbytes > MAX_BODY_BYTES:
        raise InferenceError(
            f"the model's outputs have {nbytes} bytes, and generate sends at most {MAX_BODY_BYTES}: use /infer with binary "
            "tensors",
            ErrorCode.UNSUPPORTED,
        )
    members: dict[str, Any] = dict(response.parameters or {})
    for tensor in reversed(response.outputs):  # the first of a name counts
        values = json_values(tensor, tensor.data, may_be_binary=False)
        members[tensor.name] = values[0] if len(values) == 1 else values
    members["model_name"], members["model_version"] = response.model_name, response.model_version
    if response.id:
        members["id"] = response.id
    return encode_document(dict(sorted(members.items())), may_hold_nan=False)
