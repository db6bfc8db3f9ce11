"""gzip and deflate in slices: neither a small message that becomes a large one nor a large answer holds up the event loop."""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum

from pybackend.inference.tensor import Buffer
from pybackend.protocol.limits import BodyLimits

INFLATED_SLICE_BYTES = 64 * 1024
"""Decompressed at a time: about half a millisecond."""

DEFLATED_SLICE_BYTES = 16 * 1024
"""Compressed at a time: one or two milliseconds for the slowest level in use."""

_INPUT_BYTES = 64 * 1024
"""Given to zlib at a time: it copies what it cannot use yet."""

_MAX_WBITS = 15
_WITH_GZIP_HEADER, _ANY_HEADER = 16, 32


class Coding(Enum):
    """A compression, by its name in header fields."""

    GZIP = "gzip"
    DEFLATE = "deflate"
    """zlib's format (RFC 1950), as RFC 9110 section 8.4.1.2 defines it."""


class BrokenStreamError(Exception):
    """Compressed data that cannot be decompressed."""


class Inflater:
    """Decompresses a stream whose bytes arrive in pieces.

    The data itself says which of the two formats it has: clients that confuse them are understood.
    """

    def __init__(self, coding: Coding, limits: BodyLimits) -> None:
        self._coding = coding
        self._limits = limits
        self._zlib = zlib.decompressobj(_ANY_HEADER + _MAX_WBITS)
        self._pieces: deque[memoryview] = deque()
        self._rest = b""
        self._has_more = False
        self._inflated_bytes = 0
        self.waiting_bytes = 0  # compressed bytes that were not used yet

    @property
    def is_idle(self) -> bool:
        """:meth:`step` has nothing to do before more bytes arrive."""
        return not (self._rest or self._pieces or self._has_more)

    def feed(self, data: Buffer) -> None:
        """Take the next bytes; they must not change."""
        if data:
            self._pieces.append(memoryview(data))
            self.waiting_bytes += len(data)

    def step(self) -> bytes | None:
        """Decompress a slice; perhaps there is no output in it. None if all bytes that have arrived are used.

        Raises:
            BrokenStreamError: the data is not compressed as announced, or continues after its end.
            InferenceError: INVALID_ARG; the decompressed size exceeds its limit.
        """
        piece: bytes | memoryview
        if self._rest:
            piece = self._rest
        elif self._pieces:
            piece = self._next_input()
        elif self._has_more:
            piece = b""
        else:
            return None
        if self._zlib.eof:
            raise BrokenStreamError(f"{self.waiting_bytes} bytes follow the end of the {self._coding.value} stream")
        try:
            data = self._zlib.decompress(piece, INFLATED_SLICE_BYTES)
        except zlib.error as error:
            raise BrokenStreamError(f"it is not compressed as {self._coding.value}: {error}") from None
        self._rest = self._zlib.unconsumed_tail
        self.waiting_bytes -= len(piece) - len(self._rest)
        self._has_more = len(data) == INFLATED_SLICE_BYTES and not self._zlib.eof
        self._inflated_bytes += len(data)
        self._limits.check_decompressed(self._inflated_bytes)
        if self._zlib.unused_data:
            count = len(self._zlib.unused_data) + sum(map(len, self._pieces))
            raise BrokenStreamError(f"{count} bytes follow the end of the {self._coding.value} stream")
        return data

    def finish(self) -> None:
        """Check that the stream has ended, once :meth:`step` has returned None after the last byte, or raise BrokenStreamError."""
        if not self._zlib.eof:
            raise BrokenStreamError(f"the data ends in the middle of its {self._coding.value} stream")

    def clear(self) -> None:
        """Drop everything that has arrived."""
        self._pieces.clear()
        self._rest, self._has_more, self.waiting_bytes = b"", False, 0

    def _next_input(self) -> memoryview:
        piece = self._pieces[0]
        if len(piece) <= _INPUT_BYTES:
            return self._pieces.popleft()
        self._pieces[0] = piece[_INPUT_BYTES:]
        return piece[:_INPUT_BYTES]


def deflated(pieces: Iterable[Buffer], coding: Coding, level: int) -> Iterator[bytes]:
    """The pieces compressed to one stream, of which each step compresses a slice; some give no output yet.

    Each piece must keep its content until the next is taken. zlib's level is 1 for the fastest to 9 for the smallest.
    """
    header = _WITH_GZIP_HEADER if coding is Coding.GZIP else 0
    compress = zlib.compressobj(level, zlib.DEFLATED, header + _MAX_WBITS)
    for piece in pieces:
        view = memoryview(piece)
        for begin in range(0, len(view), DEFLATED_SLICE_BYTES):
            yield compress.compress(view[begin : begin + DEFLATED_SLICE_BYTES])
    yield compress.flush()
