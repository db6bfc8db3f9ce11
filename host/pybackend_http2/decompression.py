"""Decompression of header blocks (RFC 7541).

``hpack`` has a decoder too. It makes objects of every field of every block, at 2 microseconds each. In this one a field
that the client has sent before is an index into a list, and one that is new costs its text. The errors are those of
``hpack``.
"""

from collections.abc import Callable
from typing import Final

from hpack import HPACKDecodingError, InvalidTableIndexError, InvalidTableSizeError, OversizedHeaderListError

from pybackend_http2.fields import DEFAULT_TABLE_BYTES, FIELD_OVERHEAD_BYTES, STATIC_TABLE, Field
from pybackend_http2.huffman import decode_huffman

STATIC: Final = [Field(b"", b""), *(Field(name, value) for name, value in STATIC_TABLE)]
"""By index; 0 is no field."""

STATIC_LENGTH: Final = len(STATIC) - 1

ReadText = Callable[[bytes, bytes], tuple[bytes, bytes]]

_MOST_SHIFT: Final = 28
"""Larger integers have no use."""


class Decompressor:
    """The decoder of one direction of a connection.

    Attributes:
        changed: the dynamic table is another one than before the latest block.
        replaced: the latest block has text in whose place there is another one now.
        entries: the dynamic table, its newest entry last.
        used_bytes: the size of its entries.
        table_bytes: their largest size.
        marks: what :mod:`known_heads` has noted about the entries, by their indexes; empty once the table has changed.
    """

    def __init__(self, max_list_bytes: int, read_text: ReadText | None = None) -> None:
        self.changed = self.replaced = False
        self._max_list_bytes = max_list_bytes
        self._read_text = read_text
        self.entries: list[Field] = []
        self.used_bytes = 0
        self.table_bytes = DEFAULT_TABLE_BYTES
        self.marks = b""

    def decode(self, block: bytes) -> tuple[list[Field], int]:
        """Return the fields of a block, and their size.

        Raises:
            hpack.HPACKError: the block is malformed; no further blocks can be read.
        """
        self.changed = self.replaced = False
        section: list[Field] = []
        size = at = 0
        end = len(block)
        entries = self.entries
        while at < end:
            byte = block[at]
            if byte > 0x80 and byte != 0xFF:  # an index of one byte
                at += 1
                index = byte & 0x7F
                try:
                    field = STATIC[index] if index <= STATIC_LENGTH else entries[STATIC_LENGTH - index]
                except IndexError:
                    raise _no_entry(index) from None
            elif byte & 0x80:
                index, at = read_integer(block, at, 0x7F)
                field = self._entry(index)
            elif byte & 0x60 == 0x20:
                if section:
                    raise HPACKDecodingError("Table size update not at the start of the block")
                table_bytes, at = read_integer(block, at, 0x1F)
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
        index, at = read_integer(block, at, 0x3F if is_added else 0x0F)
        if index:
            name = self._entry(index).pair[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        field = Field(name, value) if self._read_text is None else self._read(self._read_text, name, value)
        if is_added:
            self.add(field)
        return field, at

    def _read(self, read_text: ReadText, name: bytes, value: bytes) -> Field:
        text = read_text(name, value)
        field = Field(*text, may_be_padded=True)
        if text != (name, value):
            self.replaced = True
            field.size = len(name) + len(value) + FIELD_OVERHEAD_BYTES  # the encoder counts what it has sent
        return field

    def _entry(self, index: int) -> Field:
        if 0 < index <= STATIC_LENGTH:
            return STATIC[index]
        if STATIC_LENGTH < index <= STATIC_LENGTH + len(self.entries):
            return self.entries[STATIC_LENGTH - index]
        raise _no_entry(index)

    def add(self, field: Field) -> None:
        """Add an entry to the table; the oldest ones go if there is no room."""
        self.changed, self.marks = True, b""
        self.entries.append(field)  # one that is too large for the table empties it
        self.used_bytes += field.size
        if self.used_bytes > self.table_bytes:
            self._shrink()

    def _resize(self, table_bytes: int) -> None:
        self.changed, self.marks = True, b""
        if table_bytes > DEFAULT_TABLE_BYTES:
            raise InvalidTableSizeError("Encoder exceeded max allowable table size")
        self.table_bytes = table_bytes
        self._shrink()

    def _shrink(self) -> None:
        dropped = 0
        while self.used_bytes > self.table_bytes:
            self.used_bytes -= self.entries[dropped].size
            dropped += 1
        if dropped:
            del self.entries[:dropped]


def read_integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
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
    size, begin = read_integer(block, at, 0x7F)
    end = begin + size
    if end > len(block):
        raise HPACKDecodingError("a text is cut off")
    text = block[begin:end]
    return (decode_huffman(text) if block[at] & 0x80 else text), end


def _no_entry(index: int) -> HPACKDecodingError:
    return InvalidTableIndexError(f"Invalid table index {index}")
