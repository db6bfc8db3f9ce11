"""JSON documents read the careful way: every text of the reference's parser, NaN and infinities allowed.

Where: ``infer_document`` stands on it. Nothing here is on the hot path: a document comes here when the typed decoder
refused it.
"""

from __future__ import annotations

import gc
from typing import Any

import rapidjson

from pybackend.errors import ErrorCode, InferenceError
from pybackend.protocol.limits import UINT64_MAX

_decode = rapidjson.Decoder(number_mode=rapidjson.NM_NAN)
_UTF8_ADVICE = "JSON strings must be valid Unicode in UTF-8; send other bytes as a binary tensor."

MAX_NESTING = 100
"""Arrays of a tensor's data may not be nested so deep or deeper."""

NESTING_TEXT = f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})"


def parse_document(text: bytes) -> Any:
    """Parse a whole JSON text to plain Python objects.

    Raises:
        InferenceError: INTERNAL for malformed JSON, with the parser's own words and offset; INVALID_ARG for text that
            is no Unicode or is nested beyond reason.
    """
    collecting = gc.isenabled()
    gc.disable()  # ten million new lists are not garbage: looking for some among them makes parsing four times as long
    try:
        return _decode(text)
    except RecursionError:
        raise _parse_failure(NESTING_TEXT, ErrorCode.INVALID_ARG) from None
    except UnicodeDecodeError as error:
        reason = f"Invalid encoding in string. at {error.start}. {_UTF8_ADVICE}"
        raise _parse_failure(reason, ErrorCode.INVALID_ARG) from None
    except ValueError as error:
        raise _syntax_error(str(error)) from None
    finally:
        if collecting:
            gc.enable()


def _syntax_error(text: str) -> InferenceError:
    offset, _, reason = text.removeprefix("Parse error at offset ").partition(": ")
    # This binding puts brackets in quotes, which the library it wraps does not.
    reason = reason.replace("'}'", "}").replace("']'", "]") + " at " + offset
    if "surrogate" in reason:
        return _parse_failure(f"{reason}. {_UTF8_ADVICE}", ErrorCode.INVALID_ARG)
    return _parse_failure(reason, ErrorCode.INTERNAL)


def _parse_failure(reason: str, code: ErrorCode) -> InferenceError:
    return InferenceError(f"failed to parse the request JSON buffer: {reason}", code)


def type_error(field: str, wanted: str) -> InferenceError:
    """The error for a member of the wrong JSON type, e.g. ``non-string as string``."""
    return InferenceError(f"Unable to parse '{field}': attempt to access JSON {wanted}")


def member(parent: Any, name: str) -> Any:
    """A member that must be there.

    Raises:
        InferenceError: INTERNAL, if ``parent`` is no object or has no such member.
    """
    if type(parent) is not dict:
        raise type_error(name, "non-object as object")
    if name not in parent:
        raise InferenceError(f"Unable to parse '{name}': attempt to access non-existing object member '{name}'")
    return parent[name]


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
