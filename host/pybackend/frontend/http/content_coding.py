"""Which compression a request has, and which its answer may have."""

from functools import lru_cache

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.compression import Coding, deflated
from pybackend.protocol.json.infer_response import EncodedResponse

LEVEL = 1
"""zlib's level for answers: higher ones take several times as long for a few percent."""

ACCEPTED = "gzip, deflate"

LONGEST_PREFERENCE_BYTES = 1024
"""A longer ``Accept-Encoding`` counts as none: reading one of 64 KB takes tens of milliseconds."""

_CODINGS = {b"gzip": Coding.GZIP, b"x-gzip": Coding.GZIP, b"deflate": Coding.DEFLATE}
_IDENTITY = b"identity"


class UnsupportedCodingError(InferenceError):
    """A compression that the server does not have; the answer's ``Accept-Encoding`` names those that it has."""


def request_coding(value: bytes) -> Coding | None:
    """The compression of a body, None for none; several fields ``Content-Encoding`` are joined by commas.

    Raises:
        UnsupportedCodingError: it is neither of those that the server has.
    """
    name = value.strip().lower()
    if name in {b"", _IDENTITY}:
        return None
    coding = _CODINGS.get(name)
    if coding is None:
        raise UnsupportedCodingError(
            f"Unsupported compression type: {value.decode('latin-1')[:100]}. Send the body with Content-Encoding gzip or "
            "deflate, or without one",
            ErrorCode.UNSUPPORTED,
        )
    return coding


def answer_coding(value: bytes) -> Coding | None:
    """The compression that a client prefers, the first one with the highest weight.

    None for an answer that is not compressed.

    From ``Accept-Encoding``, only ``gzip``, ``deflate`` and ``identity`` count.
    """
    return _preferred(value) if len(value) <= LONGEST_PREFERENCE_BYTES else None


@lru_cache(maxsize=256)
def _preferred(value: bytes) -> Coding | None:
    best: Coding | None = None
    highest = 0.0
    for member in value.lower().split(b","):
        name, _, parameters = member.partition(b";")
        weight = _weight(parameters)
        if weight > highest and (name.strip() in _CODINGS or name.strip() == _IDENTITY):
            best, highest = _CODINGS.get(name.strip()), weight
    return best


def _weight(parameters: bytes) -> float:
    """The ``q`` of a member: 1 if it has none, 0 if it is no number from 0 to 1."""
    for parameter in parameters.split(b";"):
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0


def compressed(encoded: EncodedResponse, coding: Coding) -> EncodedResponse:
    """The response with its body compressed at once; the length of its JSON part stays that before compression."""
    body = b"".join(deflated((encoded.header_json, *encoded.chunks), coding, LEVEL))
    return EncodedResponse(body, [], encoded.json_length)
