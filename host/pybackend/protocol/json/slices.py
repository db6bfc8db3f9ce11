"""JSON in slices of a few milliseconds, so that other requests need not wait: weighed before it is parsed, or decoded.

Used by: ``generate``, and the routes of MLflow and OpenAI, whose documents have no fixed form. Those of infer have one:
see ``large_request``.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pybackend.errors import InferenceError, invalid
from pybackend.protocol.json.scan import scan
from pybackend.protocol.steps import Steps

SLICE_BYTES = 64 * 1024
"""At most 32,768 values: some milliseconds of work."""

_MOST_NESTING = 16
"""Lists and objects longer than a slice within each other: each level is scanned once more."""

_SPACES = re.compile(rb"[ \t\r\n]*")
_MEMBER = re.compile(rb'[ \t\r\n]*("(?:[^"\\]|\\.)*+")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_PLACE = re.compile(r"\(byte (\d+)\)")
_CLOSING = {b"[": b"]", b"{": b"}"}


@dataclass(slots=True)
class Weight:
    """What decides how long a parser takes for a document: texts may be long, but there must not be many."""

    members: int = 0  # of all objects
    containers: int = 0
    texts: int = 0
    plain_bytes: int = 0  # outside of texts


def weights(text: bytes) -> Iterator[Weight]:
    """The weight of a document up to the end of each slice; it need not be valid."""
    weight = Weight()
    for part in scan(text, 0, len(text), SLICE_BYTES):
        weight.members += part.plain.count(b":")
        weight.containers += int(np.count_nonzero(part.opens))
        weight.texts += part.plain.count(b'"')
        weight.plain_bytes += len(part.plain) - part.plain.count(b"\0")
        yield weight


def decode_in_steps(text: bytes, most_members: int) -> Steps[Any]:
    """The value of a document, which may have NaN and infinities. Of two members of one name, the last one counts.

    It is cut at commas, and the parts are decoded separately. An object longer than a slice has a limit of members.

    Raises:
        InferenceError: INVALID_ARG, it is no JSON, has too many members, or is nested too deeply.
    """
    return (yield from _value(text, 0, len(text), most_members, 0))


def _value(text: bytes, begin: int, end: int, most_members: int, nesting: int) -> Steps[Any]:
    """The value in a part of a document."""
    at = _end_of(_SPACES, text, begin)
    opening = text[at : at + 1]
    if end - begin <= SLICE_BYTES or opening not in _CLOSING:
        yield
        return _decoded(text[begin:end], begin)
    if nesting == _MOST_NESTING:
        raise invalid(f"the body is no JSON that this route reads: it has long lists within {_MOST_NESTING} others")
    closing = _CLOSING[opening]
    stop = begin + len(text[begin:end].rstrip())
    if text[stop - 1 : stop] != closing:
        raise _malformed(stop - 1)
    found: Any = [] if opening == b"[" else {}
    for part in _parts(text, at, stop):
        if part is None:
            yield
            continue
        first, last = part
        if last - first <= SLICE_BYTES:
            values = _decoded(opening + text[first:last] + closing, first - 1)
            if not values:
                raise _malformed(last)
            if opening == b"[":
                found += values
            else:
                found |= values
        elif opening == b"[":
            found.append((yield from _value(text, first, last, most_members, nesting + 1)))
        else:
            name = _MEMBER.match(text, first, last)
            if name is None:
                raise _malformed(first)
            found[_decoded(name[1], first)] = yield from _value(text, name.end(), last, most_members, nesting + 1)
        if opening == b"{" and len(found) > most_members:
            raise invalid(f"an object of the body has more than {most_members} members")
    return found


def _parts(text: bytes, begin: int, end: int) -> Iterator[tuple[int, int] | None]:
    """Where the parts of a list or an object begin and end, and None after some work.

    A part has several members, or one that may be longer than a slice.
    """
    first = begin + 1
    if _end_of(_SPACES, text, first) == end - 1:
        return  # nothing but spaces
    for part in scan(text, begin, end, SLICE_BYTES):
        ended = part.brackets[part.depths <= 0]
        if len(ended) and part.begin + int(ended[0]) < end - 1:
            raise _malformed(part.begin + int(ended[0]))
        for comma in part.commas_at(1):
            yield first, part.begin + comma
            first = part.begin + comma + 1
        yield None
    yield first, end - 1


def _decoded(text: bytes, place: int) -> Any:
    """The value in a text that begins at this place of the document."""
    try:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            if b"NaN" not in text and b"Infinity" not in text:
                raise
            return json.loads(text)  # what pandas writes has NaN
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = _PLACE.sub(lambda found: f"(byte {int(found[1]) + place})", str(error))
        raise invalid(f"the body is no JSON: {reason}") from None


def _malformed(place: int) -> InferenceError:
    return invalid(f"the body is no JSON: it is malformed (byte {place})")


def _end_of(pattern: re.Pattern[bytes], text: bytes, begin: int) -> int:
    found = pattern.match(text, begin)
    return begin if found is None else found.end()
