"""Header blocks of answers: encoded once, sent as often as needed.

The encoding uses the static table only (RFC 7541 appendix A) and never adds to the peer's dynamic table. So a block is
the same bytes on every connection and at every time: make blocks that repeat once, and keep them. The price is some
tens of bytes per answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pybackend_http2 import frames
from pybackend_http2.errors import LocalProtocolError
from pybackend_http2.fields import CONNECTION_SPECIFIC, NAME, STATIC_TABLE, VALUE
from pybackend_http2.request_head import Fields, RequestHead

_FIRST_BYTES: Final = 5
"""Length, type and flags of a frame: the part of its header that does not depend on the stream."""

_PSEUDO = re.compile(rb":status\Z")

_BY_FIELD: Final[dict[tuple[bytes, bytes], int]] = {}
_BY_NAME: Final[dict[bytes, int]] = {}
for _index, (_name, _value) in enumerate(STATIC_TABLE, 1):
    _BY_FIELD.setdefault((_name, _value), _index)
    _BY_NAME.setdefault(_name, _index)


class HeaderBlock:
    """The fields of an answer's head, or of trailers, checked and encoded.

    Args:
        fields: names (lower case) and values, ``:status`` first if there is one.

    Attributes:
        first, last: the beginnings of its HEADERS frame, without and with END_STREAM.

    Raises:
        LocalProtocolError: a field must not be sent in HTTP/2, or the block does not fit a frame of the size that every
            peer accepts.
    """

    __slots__ = ("encoded", "first", "last")

    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        fields = tuple(fields)
        _check(fields)
        self._keep(b"".join(_encode(name, value) for name, value in fields))

    @classmethod
    def of(cls, encoded: bytes) -> HeaderBlock:
        """The block that another connection of this server has encoded."""
        block = cls.__new__(cls)
        block._keep(encoded)
        return block

    def _keep(self, encoded: bytes) -> None:
        self.encoded, size = encoded, len(encoded)
        if size >= frames.DEFAULT_FRAME_BYTES:
            raise LocalProtocolError(f"a header block of {size} bytes does not fit a frame")
        word = size << 8 | frames.HEADERS
        self.first = frames.FRAME_HEADER.pack(word, frames.END_HEADERS, 0)[:_FIRST_BYTES]
        self.last = frames.FRAME_HEADER.pack(word, frames.END_HEADERS | frames.END_STREAM, 0)[:_FIRST_BYTES]


def encode_request(head: RequestHead, apart: Fields) -> bytes:
    """The header block of a request that was received, for another connection of this server.

    ``apart``: fields of the request in the place of those that the head may have from another one.
    """
    pseudo = (
        (b":method", head.method),
        (b":scheme", head.scheme),
        (b":authority", head.authority),
        (b":path", head.path),
    )
    names = {name for name, _ in apart}
    kept = [field for field in head.fields if field[0] not in names]
    return b"".join([_encode(*field) for field in (*[field for field in pseudo if field[1]], *kept, *apart)])


def _check(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    for number, (name, value) in enumerate(fields):
        if not NAME.match(name) and not (number == 0 and _PSEUDO.match(name)):
            raise LocalProtocolError(f"{name!r} is not the name of a field (lower case, RFC 9113 section 8.2.1)")
        if not VALUE.match(value):
            raise LocalProtocolError(
                f"field {name!r} has a value with NUL, CR, LF or outer blanks (RFC 9113 section 8.2.1)"
            )
        if name in CONNECTION_SPECIFIC:
            raise LocalProtocolError(f"field {name!r} is about a connection of HTTP/1.1 (RFC 9113 section 8.2.2)")


def _encode(name: bytes, value: bytes) -> bytes:
    """RFC 7541 section 6.1 (indexed), or 6.2.2 (literal without indexing)."""
    index = _BY_FIELD.get((name, value))
    if index is not None:
        return _integer(index, 7, 0x80)
    index = _BY_NAME.get(name)
    beginning = b"\x00" + _string(name) if index is None else _integer(index, 4, 0x00)
    return beginning + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 7, 0x00) + text


def _integer(value: int, bits: int, pattern: int) -> bytes:
    """A number whose first bits share a byte with a pattern (RFC 7541 section 5.1)."""
    mask = (1 << bits) - 1
    if value < mask:
        return bytes((pattern | value,))
    encoded, value = bytearray((pattern | mask,)), value - mask
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class AnswerForm:
    """A whole answer with one small piece of data; see ``Stream.respond_in``.

    All that recurs (head, parts of the body, trailers) is encoded once, as a format for bytes. One operation fills it.

    Args:
        body: the data as a format: ``%b`` stands for a piece that varies, ``%%`` for a percent sign.
    """

    __slots__ = ("whole",)

    def __init__(self, head: HeaderBlock, body: bytes, trailers: HeaderBlock) -> None:
        # the format of all frames. Before the pieces of the body it takes the stream's number, packed, and the header
        # of DATA; behind them the number again.
        self.whole = b"".join(
            (
                escaped(head.first),
                b"%b",
                escaped(head.encoded),
                b"%b",
                body,
                escaped(trailers.last),
                b"%b",
                escaped(trailers.encoded),
            )
        )


def escaped(constant: bytes) -> bytes:
    """Bytes that stay as they are in a format."""
    return constant.replace(b"%", b"%%")
