"""The slow JSON parser: it has every error text of the reference's parser, and accepts NaN and infinities.

Used by: ``infer_document``. Not on the hot path: documents arrive here after the typed decoder refused them.
"""

import gc
import itertools
from collections.abc import Callable
from typing import Any

import rapidjson

from pybackend.errors import ErrorCode, InferenceError
from pybackend.protocol.limits import UINT64_MAX
from pybackend.spelling import closest

_decode = rapidjson.Decoder(number_mode=rapidjson.NM_NAN)
_UTF8_ADVICE = (
    "JSON strings must be valid Unicode in UTF-8. Send a file to `generate` with `curl -F NAME=@FILE`, or other bytes to `infer` as a "
    "binary tensor, a single one with the header `Inference-Header-Content-Length: 0`."
)

_MOST_MEMBERS, _LONGEST_NAME = 20, 40
_NAME_SIMILARITY = 0.6

_EXAMPLES = {
    "inputs": '"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]',
    "name": '"name": "IN"',
    "datatype": '"datatype": "FP32"',
    "shape": '"shape": [1, 2]',
    "data": '"data": [1, 2]',
    "outputs": '"outputs": [{"name": "OUT"}]',
    "parameters": '"parameters": {}',
    "id": '"id": "42"',
}
"""The members of a request, of its inputs and of its outputs, with an example of each."""

MAX_NESTING = 100
"""Arrays of a tensor's data must be nested less deeply than this."""

NESTING_TEXT = f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})"


def parse_document(text: bytes, offset: Callable[[int], int] | None = None) -> Any:
    """Parse a whole JSON text to plain Python objects.

    ``offset`` maps a position in the text to the position to report, if the text is part of the client's.
    """
    collecting = gc.isenabled()
    gc.disable()  # ten million new lists are not garbage: searching them makes parsing take four times as long
    try:
        return _decode(text)
    except RecursionError:
        raise _parse_failure(NESTING_TEXT, ErrorCode.INVALID_ARG) from None
    except UnicodeDecodeError as error:
        reason = f"Invalid encoding in string. at {error.start}. {_UTF8_ADVICE}"
        raise _parse_failure(reason, ErrorCode.INVALID_ARG) from None
    except ValueError as error:
        raise _syntax_error(str(error), text, offset) from None
    finally:
        if collecting:
            gc.enable()


def _syntax_error(message: str, text: bytes, offset: Callable[[int], int] | None) -> InferenceError:
    place, _, reason = message.removeprefix("Parse error at offset ").partition(": ")
    found = text[int(place) : int(place) + 1] if place.isdecimal() else b""
    if offset is not None and place.isdecimal():
        place = str(offset(int(place)))
    # This binding quotes brackets, unlike the library that it wraps.
    reason = reason.replace("'}'", "}").replace("']'", "]") + " at " + place + _syntax_advice(reason, found, text)
    if "surrogate" in reason:
        return _parse_failure(f"{reason}. {_UTF8_ADVICE}", ErrorCode.INVALID_ARG)
    return _parse_failure(reason, ErrorCode.INTERNAL)


def _syntax_advice(reason: str, found: bytes, text: bytes) -> str:
    """Advice on the usual slips, empty if there is none; ``found`` is the byte at which the parser stopped."""
    if found == b"'":
        return ". JSON takes double quotes, not single ones"
    if reason.startswith("Missing a name") and found == b"}":
        return ". Remove the comma before the }"
    if reason.startswith("Invalid value") and found == b"]":
        return ". Remove the comma before the ]"
    if reason.startswith("The document root must not be followed"):
        return ". Bytes of tensors after the JSON need the header Inference-Header-Content-Length, with the length of the JSON"
    if text.lstrip()[:1] not in {b"{", b"["}:
        return f". The body must be JSON, such as {{{_EXAMPLES['inputs']}}}"
    return ""


def _parse_failure(reason: str, code: ErrorCode) -> InferenceError:
    return InferenceError(f"failed to parse the request JSON buffer: {reason}", code)


_KINDS = {
    "object": "an object in { }",
    "array": "a list in [ ]",
    "string": "text in double quotes",
    "boolean": "true or false, without quotes",
    "double": "numbers without quotes",
    "signed-integer": "whole numbers, without fraction or quotes",
    "unsigned-integer": "whole numbers of at least 0, without fraction or quotes",
}
"""How each JSON type of the reference's texts is written."""


def type_error(field: str, wanted: str) -> InferenceError:
    """The error for a member of the wrong JSON type, e.g. ``non-string as string``."""
    kind = wanted.rpartition(" ")[2]
    return InferenceError(f"Unable to parse '{field}': attempt to access JSON {wanted}. Write {_KINDS[kind]}")


def member(parent: Any, name: str) -> Any:
    """A required member."""
    if type(parent) is not dict:
        raise type_error(name, "non-object as object")
    if name not in parent:
        raise InferenceError(
            f"Unable to parse '{name}': attempt to access non-existing object member '{name}'{_what_is_there(parent, name)}"
        )
    return parent[name]


def optional(parent: dict[str, Any], name: str, default: Any = None) -> Any:
    """A member that may be left out, or be null, which clients write for what they leave out."""
    value = parent.get(name)
    return default if value is None else value


def _what_is_there(parent: dict[str, Any], name: str) -> str:
    near = misspelt(parent, name)
    if near:
        return f". {near}"
    example = _EXAMPLES.get(name)
    return f". Add {example}" if example else ""


def misspelt(parent: dict[str, Any], name: str) -> str:
    """A sentence about the member that was probably meant to have this name, ``""`` if there is none."""
    others = [
        key for key in itertools.islice(parent, _MOST_MEMBERS) if key not in _EXAMPLES and len(key) < _LONGEST_NAME
    ]
    near = closest(name, others, _NAME_SIMILARITY)
    return f"There is a member '{near}': write '{name}'" if near else ""


def as_array(value: Any, field: str) -> list[Any]:
    """The value, if it is an array; else InferenceError INTERNAL."""
    if type(value) is not list:
        raise type_error(field, "non-array as array")
    return value


def as_object(value: Any, field: str) -> dict[str, Any]:
    """The value, if it is an object; else InferenceError INTERNAL."""
    if type(value) is not dict:
        raise type_error(field, "non-object as object")
    return value


def as_string(value: Any, field: str) -> str:
    """The value, if it is a string; else InferenceError INTERNAL."""
    if type(value) is not str:
        raise type_error(field, "non-string as string")
    return value


def as_bool(value: Any, field: str) -> bool:
    """The value, if it is a boolean; else InferenceError INTERNAL."""
    if type(value) is not bool:
        raise type_error(field, "non-boolean as boolean")
    return value


def is_unsigned(value: Any) -> bool:
    """True for an integer (no boolean, no ``1.0``) that fits 64 unsigned bits."""
    return type(value) is int and 0 <= value <= UINT64_MAX


def as_unsigned(value: Any, field: str) -> int:
    """The value, if it is an integer that fits 64 unsigned bits; else InferenceError INTERNAL."""
    if not is_unsigned(value):
        raise type_error(field, "non-unsigned-integer as unsigned-integer")
    return int(value)
