"""Decompression of header blocks (RFC 7541).

``hpack`` has a decoder too. It makes objects of every field of every block, at 2 microseconds each. In this one a field that the client has
sent before is an index into a list, and one that is new costs its text. The errors are those of ``hpack``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hpack import HPACKDecodingError, InvalidTableIndexError, InvalidTableSizeError, OversizedHeaderListError

from pybackend.frontend.http2.fields import DEFAULT_TABLE_BYTES, FIELD_OVERHEAD_BYTES, STATIC_TABLE, Field
from pybackend.frontend.http2.huffman import decode_huffman

_STATIC: Final = [Field(b"", b""), *(Field(name, value) for name, value in STATIC_TABLE)]
"""By index; 0 is no field."""

_STATIC_LENGTH: Final = len(_STATIC) - 1

ReadText = Callable[[bytes, bytes], tuple[bytes, bytes]]

_MOST_SHIFT: Final = 28
"""Larger integers have no use."""


class Decompressor:
    """The decoder of one direction of a connection.

    Attributes:
        changed: the dynamic table is another one than before the latest block.
        replaced: the latest block has text in whose place there is another one now.
    """

    def __init__(self, max_list_bytes: int, read_text: ReadText | None = None) -> None:
        self.changed = self.replaced = False
        self._max_list_bytes = max_list_bytes
        self._read_text = read_text
        self._entries: list[Field] = []  # the dynamic table, its newest entry last
        self._used_bytes = 0
        self._table_bytes = DEFAULT_TABLE_BYTES

    def decode(self, block: bytes) -> tuple[list[Field], int]:
        """Return the fields of a block, and their size.

        Raises:
            hpack.HPACKError: the block is malformed; no further blocks can be read.
        """
        self.changed = self.replaced = False
        section: list[Field] = []
        size = at = 0
        end = len(block)
        entries = self._entries
        while at < end:
            byte = block[at]
            if byte > 0x80 and byte != 0xFF:  # an index of one byte
                at += 1
                index = byte & 0x7F
                try:
                    field = _STATIC[index] if index <= _STATIC_LENGTH else entries[_STATIC_LENGTH - index]
                except IndexError:
                    raise _no_entry(index) from None
            elif byte & 0x80:
                index, at = _integer(block, at, 0x7F)
                field = self._entry(index)
            elif byte & 0x60 == 0x20:
                if section:
                    raise HPACKDecodingError("Table size update not at the start of the block")
                table_bytes, at = _integer(block, at, 0x1F)
                self._resize(table_bytes)
                continue
            else:
                field, at = self._literal(block, at, byte)
            section.append(field)
            size += field.size
            if size > self._max_list_bytes:
                raise OversizedHeaderListError(f"more than {self._max_list_bytes} bytes")
        return section, size

    def _literal(self, block: bytes, at: int, byte: int) -> tuple[Field, int]:
        """A field whose value is text, and the offset behind it."""
        is_added = byte & 0x40
        index, at = _integer(block, at, 0x3F if is_added else 0x0F)
        if index:
            name = self._entry(index).name
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        field = Field(name, value) if self._read_text is None else self._read(self._read_text, name, value)
        if is_added:
            self._add(field)
        return field, at

    def _read(self, read_text: ReadText, name: bytes, value: bytes) -> Field:
        text = read_text(name, value)
        field = Field(*text)
        if text != (name, value):
            self.replaced = True
            field.size = len(name) + len(value) + FIELD_OVERHEAD_BYTES  # the encoder counts what it has sent
        return field

    def _entry(self, index: int) -> Field:
        if 0 < index <= _STATIC_LENGTH:
            return _STATIC[index]
        if _STATIC_LENGTH < index <= _STATIC_LENGTH + len(self._entries):
            return self._entries[_STATIC_LENGTH - index]
        raise _no_entry(index)

    def _add(self, field: Field) -> None:
        self.changed = True
        self._entries.append(field)  # one that is too large for the table empties it
        self._used_bytes += field.size
        self._shrink()

    def _resize(self, table_bytes: int) -> None:
        self.changed = True
        if table_bytes > DEFAULT_TABLE_BYTES:
            raise InvalidTableSizeError("Encoder exceeded max allowable table size")
        self._table_bytes = table_bytes
        self._shrink()

    def _shrink(self) -> None:
        dropped = 0
        while self._used_bytes > self._table_bytes:
            self._used_bytes -= self._entries[dropped].size
            dropped += 1
        if dropped:
            del self._entries[:dropped]


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number whose first bits are those of the mask, and the offset behind it (RFC 7541 section 5.1)."""
    try:
        value = block[at] & mask
        at += 1
        if value != mask:
            return value, at
        shift = 0
        while True:
            byte = block[at]
            at += 1
            value += (byte & 0x7F) << shift
            if byte <= 0x7F:
                return value, at
            shift += 7
            if shift > _MOST_SHIFT:
                raise HPACKDecodingError("an integer is too long")
    except IndexError:
        raise HPACKDecodingError("an integer is cut off") from None


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """A text, and the offset behind it (RFC 7541 section 5.2)."""
    size, begin = _integer(block, at, 0x7F)
    end = begin + size
    if end > len(block):
        raise HPACKDecodingError("a text is cut off")
    text = block[begin:end]
    return (decode_huffman(text) if block[at] & 0x80 else text), end


def _no_entry(index: int) -> HPACKDecodingError:
    return InvalidTableIndexError(f"Invalid table index {index}")
