"""Where a chunked body ends. The parser knows, but tells only after it has gone on to whatever follows.

Where: in front of the parser, so that it is never given bytes of the next request on its connection.
"""

from __future__ import annotations

MOST_CHUNKS = 65536
LONGEST_LINE_BYTES = 16 * 1024
"""Bound of a chunk's extensions and of one trailer field; neither is of any use here."""


class ChunkedBodyError(Exception):
    """A body in more chunks, or with longer lines between them, than anybody needs."""


class ChunkedEnd:
    """Follows the framing of one body. It judges nothing else: what is malformed is the parser's to refuse."""

    def __init__(self) -> None:
        self._line = b""
        self._data_left = 0
        self._chunk_count = 0
        self._in_trailer = False

    def find(self, data: bytes) -> int:
        """How many of these bytes belong to the body: all of them, or fewer if it ends before.

        Raises:
            ChunkedBodyError: the body is not worth going on with.
        """
        at, size = 0, len(data)
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
            if self._ends_with_line():
                return at
        return size

    def _ends_with_line(self) -> bool:
        """True if the line that is complete now is the body's last."""
        line, self._line = self._line.removesuffix(b"\r"), b""
        if self._in_trailer:
            return not line
        try:
            chunk_bytes = int(line.partition(b";")[0], 16)
        except ValueError:
            return False  # the parser refuses it
        if chunk_bytes <= 0:
            self._in_trailer = True
            return False
        self._data_left = chunk_bytes + 2
        self._chunk_count += 1
        if self._chunk_count > MOST_CHUNKS:
            raise ChunkedBodyError(
                f"Chunked request body exceeds maximum of {MOST_CHUNKS} non-empty chunks. Send fewer or larger HTTP "
                "chunks."
            )
        return False
