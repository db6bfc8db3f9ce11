"""Received header blocks: decompressed, checked, and remembered by their bytes.

A client repeats its header blocks: once its encoder has put the fields into the dynamic table, each request is a
handful of indexes. The meaning of such bytes stays the same as long as the table does. So a block that leaves the table
as it was is remembered with its checked head, and a block that changes the table clears the memory. What such blocks
say but for fields that nobody reads is remembered by :mod:`known_heads`.
"""

import re
from collections.abc import Sequence
from typing import Any

import hpack

from pybackend_http2.decompression import Decompressor
from pybackend_http2.errors import ErrorCode, RemoteProtocolError, StreamError
from pybackend_http2.fields import Field
from pybackend_http2.known_heads import KnownHeads, Remembered
from pybackend_http2.request_head import Fields, RequestHead, read_request, read_trailers
from pybackend_http2.settings import HARD_FACTOR, Config

_MOST_REMEMBERED_BYTES = 64 * 1024
"""Of one connection: blocks and their decompressed fields."""

_SIZE_UPDATE_BITS, _SIZE_UPDATE = 0xE0, 0x20

_TOO_MANY_SIZE_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,9}[\x00-\x7f]){3}")
"""RFC 7541 section 4.2 knows no need for more than two."""

_MOST_REASON_CHARACTERS = 100


class HeaderListTooLarge(StreamError):
    """The header section has more bytes or fields than the server accepts; the stream gets status 431."""


class HeaderDecoder:
    """The decoder of one connection."""

    def __init__(self, config: Config) -> None:
        # heads of requests by their header blocks; valid at this moment. Look here first.
        self.known: Remembered[RequestHead] = Remembered(_MOST_REMEMBERED_BYTES if config.remembers_heads else 0)
        self.kind: Any = None  # a place for what ``whole_requests`` makes of them; emptied with ``known``
        self.fields_apart: Fields = ()  # those that the head of the latest request lacks; see ``Use.READS_APART``
        self._max_list_bytes = config.max_header_list_bytes
        self._max_fields = config.max_header_fields
        self._decompressor = Decompressor(self._max_list_bytes * HARD_FACTOR, config.read_text)
        self._known_heads: KnownHeads | None = None
        if config.remembers_heads:
            self._known_heads = KnownHeads(self._decompressor, self._max_list_bytes, config.read_text, config.use_of)

    def request(self, block: bytes) -> RequestHead:
        """Decompress and check the header block of a request.

        After a StreamError (a malformed request, or too large a header section) the dynamic table is still right. After
        any other RemoteProtocolError it is not: the block cannot be decompressed.
        """
        self.fields_apart = ()
        known = self.known.get(block) or self.known_otherwise(block)
        if known is not None:
            return known
        section, list_bytes = self._decompress(block)
        head = read_request(section)
        if self._known_heads is not None:
            if not (self._decompressor.changed or self._decompressor.replaced):
                self.known.remember(block, head, list_bytes + len(block))
            self._known_heads.learn(section)
        return head

    def known_otherwise(self, block: bytes) -> RequestHead | None:
        """The head of a block that is not in ``known``, if it is known but for fields that are not read.

        The block has then been decompressed.
        """
        heads = self._known_heads
        if heads is None:
            return None
        head = heads.find(block)
        if head is not None:
            self.fields_apart = heads.fields_apart
            if self._decompressor.changed and self.known:
                self._forget_blocks()
        return head

    def trailers(self, block: bytes) -> Fields:
        """Decompress and check the header block that ends a request; raises as :meth:`request` does."""
        return read_trailers(self._decompress(block)[0])

    def skip(self, block: bytes) -> None:
        """Decompress a block for its effect on the dynamic table."""
        if block not in self.known:
            try:
                self._decompress(block)
            except StreamError:
                return

    def _decompress(self, block: bytes) -> tuple[Sequence[Field], int]:
        if block and block[0] & _SIZE_UPDATE_BITS == _SIZE_UPDATE and _TOO_MANY_SIZE_UPDATES.match(block):
            raise RemoteProtocolError(ErrorCode.COMPRESSION_ERROR, "4.3", "a header block resizes its table too often")
        try:
            section, list_bytes = self._decompressor.decode(block)
        except hpack.OversizedHeaderListError as error:
            raise RemoteProtocolError(
                ErrorCode.ENHANCE_YOUR_CALM,
                "10.5.1",
                f"a header section exceeds {HARD_FACTOR} times the bound of {self._max_list_bytes} bytes",
            ) from error
        except hpack.HPACKError as error:
            raise RemoteProtocolError(
                ErrorCode.COMPRESSION_ERROR,
                "4.3",
                f"a header block cannot be decompressed: {str(error)[:_MOST_REASON_CHARACTERS]}",
            ) from error
        if self._decompressor.changed and self.known:
            self._forget_blocks()
        if list_bytes > self._max_list_bytes or len(section) > self._max_fields:
            raise HeaderListTooLarge(
                ErrorCode.ENHANCE_YOUR_CALM,
                "10.5.1",
                f"a header section has {len(section)} fields and {list_bytes} bytes; at most {self._max_fields} and {self._max_list_bytes} are accepted",
            )
        return section, list_bytes

    def forget(self) -> None:
        """Drop the remembered heads."""
        self._forget_blocks()
        if self._known_heads is not None:
            self._known_heads.forget()

    def _forget_blocks(self) -> None:
        self.known.clear()
        self.kind = None
