"""Decompression of header blocks (RFC 7541).

``hpack`` has a decoder too. It makes objects of every field of every block, at 2 microseconds each. In this one a field that the client has
sent before is an index into a list, and one that is new costs its text. The errors are those of ``hpack``.

Huffman coding is read one byte at a time. A step from one state with one byte is computed when it is first needed, because few of all
combinations of state and byte ever occur.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hpack import HPACKDecodingError, InvalidTableIndexError, InvalidTableSizeError, OversizedHeaderListError

from pybackend.frontend.http2.fields import DEFAULT_TABLE_BYTES, FIELD_OVERHEAD_BYTES, STATIC_TABLE, Field

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


_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b08060606"
    "0505050606060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817"
    "181816171817171717151617161717181615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a17"
    "1a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
"""The codes' lengths in bits by symbol; the last one is the end of all texts (RFC 7541 appendix B). Codes of one length follow each other."""

_END: Final = len(_LENGTHS) - 1


def _tree() -> list[list[int]]:
    """Nodes, the root first: for each bit, the number of the next node, or ``~symbol``."""
    nodes = [[0, 0]]
    code = length = 0
    for size, symbol in sorted((size, symbol) for symbol, size in enumerate(_LENGTHS)):
        code, length = code << size - length, size
        node = nodes[0]
        for place in range(size - 1, 0, -1):
            bit = code >> place & 1
            if not node[bit]:
                node[bit] = len(nodes)
                nodes.append([0, 0])
            node = nodes[node[bit]]
        node[code & 1] = ~symbol
        code += 1
    return nodes


_NODES: Final = _tree()


def _paddings() -> set[int]:
    """The nodes in which a text may end: up to seven bits, all of them ones, follow its last symbol."""
    nodes = [0]
    for _ in range(7):
        nodes.append(_NODES[nodes[-1]][1])
    return set(nodes)


_PADDINGS: Final = _paddings()

_MOST_STEPS: Final = 8192
"""Far more than text needs. If a client sends more combinations, the oldest are forgotten: they must neither fill the server's memory
nor keep out those of other clients."""

_Step = tuple[int, bytes, bool]
"""The next state (shifted by 8 bits), the decoded bytes, and whether the text may end here."""

_steps: dict[int, _Step] = {}


def decode_huffman(encoded: bytes) -> bytes:
    """Return the text of a string.

    Raises:
        HPACKDecodingError: it has the symbol that ends all texts, or its end is not padded as it must be.
    """
    state, complete = 0, True
    parts = []
    for byte in encoded:
        step = _steps.get(state | byte)
        if step is None:
            step = _make_step(state, byte)
        state, text, complete = step
        parts.append(text)
    if not complete:
        raise HPACKDecodingError("Incomplete Huffman string")
    return b"".join(parts)


def _make_step(state: int, byte: int) -> _Step:
    node, text = state >> 8, bytearray()
    for place in range(7, -1, -1):
        node = _NODES[node][byte >> place & 1]
        if node < 0:
            if ~node == _END:
                raise HPACKDecodingError("Invalid Huffman string")
            text.append(~node)
            node = 0
    step = (node << 8, bytes(text), node in _PADDINGS)
    if len(_steps) >= _MOST_STEPS:
        del _steps[next(iter(_steps))]
    _steps[state | byte] = step
    return step
