"""Finds the end of a chunked body. The parser knows it too, but reports it only after reading whatever follows.

Runs in front of the parser, so that it never sees trailer fields or bytes of the connection's next request. The parser
would act on them: a ``Connection: close`` among trailer fields would end the connection. A server may ignore trailer
fields, and must not take framing or connection options from them (RFC 9110, section 6.5.1).
"""

from __future__ import annotations

import re

MOST_CHUNKS = 65536
LONGEST_LINE_BYTES = 16 * 1024
"""Limit on a chunk's extensions and on one trailer field. The server uses neither."""

MOST_TRAILER_BYTES = 64 * 1024
"""Limit on all trailer fields together, the same as for a head."""

_TRAILER_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r")


class ChunkedBodyError(Exception):
    """A body with too many chunks or too long lines between them, or with malformed trailer fields."""


class ChunkedEnd:
    """Follows the framing of one body. It validates nothing else: the parser refuses malformed chunks.

    Attributes:
        framing_bytes: how many bytes of the last piece precede the trailer fields, and belong to the parser.
        is_complete: the body has ended, including its trailer fields.
    """

    def __init__(self) -> None:
        self.framing_bytes = 0
        self.is_complete = False
        self._line = b""
        self._data_left = 0
        self._chunk_count = 0
        self._in_trailer = False
        self._trailer_bytes = 0

    def find(self, data: bytes) -> int:
        """How many of these bytes belong to the body: all, or fewer if it ends before.

        Raises:
            ChunkedBodyError: the body exceeds a limit or is malformed.
        """
        at, size = 0, len(data)
        self.framing_bytes = 0 if self._in_trailer else size
        while at < size:
            if self._data_left:
                step = min(self._data_left, size - at)
                self._data_left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            self._line += data[at:] if end < 0 else data[at:end]
            if len(self._line) > LONGEST_LINE_BYTES:
                raise ChunkedBodyError(
                    f"Chunked request body has a chunk extension or a trailer of more than {LONGEST_LINE_BYTES} bytes."
                )
            if end < 0:
                break
            at = end + 1
            line, self._line = self._line, b""
            if self._in_trailer:
                if self._ends_with_field(line):
                    self.is_complete = True
                    return at
            elif self._is_last_chunk(line):
                self._in_trailer, self.framing_bytes = True, at
        return size

    def _ends_with_field(self, line: bytes) -> bool:
        """True for the empty line after the trailer fields."""
        if line == b"\r":
            return True
        self._trailer_bytes += len(line)
        if _TRAILER_FIELD.fullmatch(line) is None or self._trailer_bytes > MOST_TRAILER_BYTES:
            raise ChunkedBodyError(
                "Invalid HTTP request received: the trailer fields are malformed (RFC 9112), or exceed "
                f"{MOST_TRAILER_BYTES} bytes"
            )
        return False

    def _is_last_chunk(self, line: bytes) -> bool:
        """True if the current complete line announces the last chunk."""
        try:
            chunk_bytes = int(line.removesuffix(b"\r").partition(b";")[0], 16)
        except ValueError:
            return False  # the parser refuses it
        if chunk_bytes <= 0:
            return True
        self._data_left = chunk_bytes + 2
        self._chunk_count += 1
        if self._chunk_count > MOST_CHUNKS:
            raise ChunkedBodyError(
                f"Chunked request body exceeds maximum of {MOST_CHUNKS} non-empty chunks. Send fewer or larger HTTP "
                "chunks."
            )
        return False
