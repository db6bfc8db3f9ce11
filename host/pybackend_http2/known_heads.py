"""Heads that are known but for fields that nobody reads: the names of requests, trace contexts, cookies, user agents.

Clients send such fields in literal form, or add them to the table and thus change what all indexes mean. So a head is
not known by the bytes of its block, but by a key with a byte, the *mark*, for each field. Entries of the table have
their marks in a string, by index: one call translates all indexes in a row, and a new entry moves the marks of the
others.

A block that is not a known head, or that has anything unusual, changes nothing here and is decompressed as any other.
"""

import re
from collections.abc import Callable, Sequence
from random import randrange
from typing import Final, Generic, NamedTuple, TypeVar

from hpack import HPACKDecodingError

from pybackend_http2.decompression import (
    STATIC,
    STATIC_LENGTH,
    Decompressor,
    ReadText,
    read_integer,
)
from pybackend_http2.fields import FIELD_OVERHEAD_BYTES, NAME, NO_MARK, OBEYED, VALUE, Field, Use, plain_field
from pybackend_http2.huffman import decode_huffman
from pybackend_http2.request_head import Fields, RequestHead, read_request

V = TypeVar("V")

_IGNORED: Final = b"\1"
_APART: Final = b"\2"
_UNREAD: Final = frozenset({_IGNORED, _APART})
_READ: Final = b"\3"
"""In place of the mark of a field that is read."""
_USES: Final = {Use.READS: _READ, Use.READS_APART: _APART, Use.IGNORES: _IGNORED}
_FIRST_MARK, _MOST_MARKS = 4, 124
"""Marks of fields that are read. Those above 0x80 are the indexes of the static table."""

_LONGEST_FIELD_BYTES: Final = 512
"""The longest field that is read, or to which an index leads. With the most marks this limits the memory of one
connection to 64 KB."""

_OF_A_MARK_BYTES: Final = _LONGEST_FIELD_BYTES
_MOST_KEYS_BYTES: Final = 64 * 1024
_MOST_NAMES, _MOST_SEEN = 256, 256

_FIRST_INDEX: Final = 0x80 | STATIC_LENGTH + 1
_INDEXED: Final = 65
"""Entries whose index is one byte."""
_STATIC_MARKS: Final = bytes(0x81) + bytes(range(0x81, _FIRST_INDEX))
_indexes: Final = re.compile(rb"[\x81-\xfe]*").match
_is_value: Final = VALUE.match

for _index in range(1, STATIC_LENGTH + 1):
    STATIC[_index].mark = bytes((0x80 | _index,))


class Remembered(dict[bytes, V], Generic[V]):
    """A dict with a bound in bytes: if there is no room, random entries go.

    Of things that take turns, most are then still found.
    """

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._left_bytes = self._most_bytes = most_bytes
        self._costs: list[tuple[bytes, int]] = []

    def remember(self, key: bytes, value: V, cost_bytes: int) -> None:
        if cost_bytes > self._most_bytes or key in self:
            return
        costs = self._costs
        while cost_bytes > self._left_bytes:
            at = randrange(len(costs))  # noqa: S311  nothing secret
            costs[at], costs[-1] = costs[-1], costs[at]
            other, other_bytes = costs.pop()
            del self[other]
            self._left_bytes += other_bytes
        self[key] = value
        costs.append((key, cost_bytes))
        self._left_bytes -= cost_bytes

    def clear(self) -> None:
        super().clear()
        self._costs.clear()
        self._left_bytes = self._most_bytes


_Table = tuple[list[Field], int, bytes]
"""Entries, their size, and marks by index."""


class _Known(NamedTuple):
    """A head, and the size that its other fields may have."""

    head: RequestHead
    left_bytes: int


class KnownHeads:
    """The known heads of one connection."""

    def __init__(
        self,
        table: Decompressor,
        max_list_bytes: int,
        read_text: ReadText | None,
        use_of: Callable[[bytes], Use] | None,
    ) -> None:
        self.fields_apart: Fields = ()  # those that the head that was found last lacks because they vary
        self._table = table
        self._max_list_bytes = max_list_bytes
        self._read_text = read_text
        self._use_of = use_of
        self._heads: Remembered[_Known] = Remembered(_MOST_KEYS_BYTES)
        self._marks: dict[tuple[bytes, bytes], bytes] = {}  # by name and value, of fields that are read
        self._seen: set[int] = set()
        self._uses: dict[bytes, bytes] = {}
        self._replaced: set[bytes] = set()  # names whose values have others in their place
        self._names: dict[bytes, bytes] = {}  # by how a client writes them

    def forget(self) -> None:
        """Forget everything: the rules have changed, or there are too many fields."""
        for memory in (self._heads, self._marks, self._seen, self._uses, self._replaced, self._names):
            memory.clear()
        for field in self._table.entries:
            field.mark = NO_MARK
        self._table.marks = b""

    def find(self, block: bytes) -> RequestHead | None:
        """The head in a block, if it is known; the table is then as the block leaves it.

        Otherwise None, and the table is as it was.
        """
        table = self._table
        marks = table.marks or self._mark_entries()
        before: _Table | None = None
        apart: list[tuple[bytes, bytes]] = []
        at, end, key = 0, len(block), b""
        try:
            while at < end:
                byte = block[at]
                if byte > 0x80:
                    begin, at = at, _indexes(block, at).end()  # type: ignore[union-attr]
                    marked = block[begin:at].translate(marks)
                    if at == begin:
                        break  # a large index
                    if _APART in marked:
                        apart += self._pairs_apart(block[begin:at], marked)
                    key += marked
                elif byte == 0x80 or byte & 0x60 == 0x20:
                    break  # no index, or another size of the table
                else:
                    name, value, mark, at = self._literal(block, at, 0x3F if byte & 0x40 else 0x0F)
                    key += mark
                    if mark == _APART:
                        apart.append((name, value))
                    if byte & 0x40:
                        before = before or (table.entries.copy(), table.used_bytes, marks)
                        marks = self._add(name, value, mark, marks)
        except (LookupError, HPACKDecodingError):
            key = NO_MARK
        known = self._heads.get(key)
        # Text is less than twice as long as its code.
        if known is None or 2 * end + _OF_A_MARK_BYTES * len(key) > known.left_bytes or at != end:
            if before is not None:
                table.entries[:], table.used_bytes, table.marks = before
            return None
        self.fields_apart = tuple(apart)
        table.changed = before is not None
        return known.head

    def _pairs_apart(self, indexes: bytes, marks: bytes) -> list[tuple[bytes, bytes]]:
        entries = self._table.entries
        both = zip(indexes, marks, strict=True)
        return [entries[_FIRST_INDEX - 1 - index].pair for index, mark in both if mark == _APART[0]]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[bytes, bytes, bytes, int]:
        """Name, value and mark of a field in literal form, and the offset behind it.

        A LookupError if it is not known, or unusual.
        """
        index = block[at] & mask
        at += 1
        if index == mask:
            if block[at] > 0x7F:
                raise LookupError(index)
            index += block[at]
            at += 1
        if not index:
            begin, at = at, at + 1 + (block[at] & 0x7F)
            written = block[begin:at]
            name = self._names.get(written) or self._read_name(written)
        elif index > STATIC_LENGTH:
            name = self._table.entries[STATIC_LENGTH - index].pair[0]
        else:
            name = STATIC[index].pair[0]
        size = block[at]
        length = size & 0x7F
        if length == 0x7F:
            length, at = read_integer(block, at, 0x7F)
        else:
            at += 1
        end = at + length
        value = decode_huffman(block[at:end]) if size > 0x7F else block[at:end]
        mark = self._uses.get(name) or self._use(name)
        if mark == _READ:
            mark = self._marks[(name, value) if self._read_text is None else self._read_text(name, value)]
        elif not _is_value(value):
            raise LookupError(value)
        return name, value, mark, end

    def _add(self, name: bytes, value: bytes, mark: bytes, marks: bytes) -> bytes:
        """Add a field to the table. Returns the marks by index, which are thus others."""
        table = self._table
        size = len(name) + len(value) + FIELD_OVERHEAD_BYTES
        if self._read_text is not None and (mark not in _UNREAD or name in self._replaced):
            name, value = self._read_text(name, value)
        if mark in _UNREAD:
            field = plain_field(name, value)
        else:
            field = Field(name, value, may_be_padded=self._read_text is not None)
        field.size, field.mark = size, mark if size <= _LONGEST_FIELD_BYTES else NO_MARK
        table.add(field)
        marks = _STATIC_MARKS + field.mark + marks[_FIRST_INDEX:-2] + b"\0"
        left = len(table.entries)
        if left < _INDEXED:
            marks = marks[: _FIRST_INDEX + left] + bytes(_INDEXED + 1 - left)
        table.marks = marks
        return marks

    def _mark_entries(self) -> bytes:
        """Make the string of marks by index."""
        marks = b"".join([field.mark for field in reversed(self._table.entries[-_INDEXED:])])
        self._table.marks = made = _STATIC_MARKS + marks + bytes(_INDEXED + 1 - len(marks))
        return made

    def _use(self, name: bytes) -> bytes:
        """Return the mark that stands for the use of a name.

        Fields are read if their names are no ordinary ones, or are HTTP/2's.
        """
        use = Use.READS
        if self._use_of is not None and name not in OBEYED and NAME.match(name):
            use = self._use_of(name)
        if len(self._uses) >= _MOST_NAMES:
            self._uses.clear()
            self._replaced.clear()
        if self._read_text is not None and self._read_text(name, b"x")[1] != b"x":
            self._replaced.add(name)
        mark = self._uses[name] = _USES[use]
        return mark

    def _read_name(self, written: bytes) -> bytes:
        """The name in a string; a LookupError if it is cut off or long."""
        size = written[0] & 0x7F
        if size == 0x7F or len(written) != 1 + size:
            raise LookupError(size)
        name = decode_huffman(written[1:]) if written[0] & 0x80 else written[1:]
        if self._read_text is not None:
            name = self._read_text(name, b"")[0]
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        self._names[written] = name
        return name

    def learn(self, section: Sequence[Field]) -> None:
        """Remember the head of a request without faults, once all fields that are read have come before."""
        key, read = b"", []
        for field in section:
            mark = field.mark
            if mark == NO_MARK:
                mark = self._uses.get(field.pair[0]) or self._use(field.pair[0])
                if mark == _READ:
                    mark = self._learn_mark(field)
                if field.size <= _LONGEST_FIELD_BYTES:
                    field.mark, self._table.marks = mark, b""
            if mark not in _UNREAD:
                read.append(field)
            key += mark
        if NO_MARK not in key and key not in self._heads:
            list_bytes = sum(field.size for field in read)
            self._heads.remember(
                key, _Known(read_request(read), self._max_list_bytes - list_bytes), len(key) + list_bytes
            )

    def _learn_mark(self, field: Field) -> bytes:
        """The mark of a field that is read; it gets one when it comes for the second time."""
        pair = field.pair
        mark = self._marks.get(pair)
        if mark is not None:
            return mark
        if field.size > _LONGEST_FIELD_BYTES:
            return NO_MARK
        if hash(pair) not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(hash(pair))
            return NO_MARK
        if len(self._marks) >= _MOST_MARKS:
            self.forget()
            return NO_MARK
        mark = self._marks[pair] = bytes((_FIRST_MARK + len(self._marks),))
        return mark
