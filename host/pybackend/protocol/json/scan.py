"""Where the brackets and commas of a document lie, found in slices with numpy and without parsing it.

Used by: ``outline``, ``large_request`` and ``slices``, which cut large documents where it is safe.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

_OPENING, _CLOSING = 0x7B, 0x7D
"""Brackets and braces with bit 5 set, which makes brackets and braces equal."""


class Slice:
    """A slice of a document, which begins and ends within no escape. Places count from its ``begin``.

    Attributes:
        plain: the bytes, zeros for those of texts but for the quote at the end of each.
        brackets: places of the brackets and braces in them.
        opens: whether each of them opens something.
        depths: how many are open behind each of them.
        ends_in_text: 1 if a text goes on in the next slice, else 0.
    """

    def __init__(self, text: bytes | bytearray, begin: int, end: int, depth: int, in_text: int) -> None:
        self.begin, self.end = begin, end
        self._depth = depth
        self.plain, self.ends_in_text = _outside_texts(bytes(text[begin:end]), in_text)
        folded = np.frombuffer(self.plain, np.uint8) | 0x20
        self.brackets = np.flatnonzero((folded == _OPENING) | (folded == _CLOSING))
        self.opens = folded[self.brackets] == _OPENING
        self.depths = depth + np.cumsum(np.where(self.opens, 1, -1))

    @property
    def last_depth(self) -> int:
        return int(self.depths[-1]) if len(self.depths) else self._depth

    def before(self, place: int) -> tuple[int, int]:
        """How many of the brackets and braces come before a place, and how many are open there."""
        count = int(np.searchsorted(self.brackets, place))
        return count, int(self.depths[count - 1]) if count else self._depth

    def commas_at(self, depth: int) -> list[int]:
        """Places of the first and of the last comma at a depth."""
        gaps = np.flatnonzero(np.append(self._depth, self.depths) == depth)
        first = next(self._commas(gaps, self.plain.find), -1)
        last = next(self._commas(gaps[::-1], self.plain.rfind), -1)
        return sorted({first, last} - {-1})

    def _commas(self, gaps: npt.NDArray[np.intp], find: Callable[[bytes, int, int], int]) -> Iterator[int]:
        """The first or last comma of each gap between two brackets or braces."""
        borders = np.concatenate(([0], self.brackets, [len(self.plain)]))
        for gap in gaps:
            found = find(b",", int(borders[gap]), int(borders[gap + 1]))
            if found >= 0:
                yield found


def _outside_texts(part: bytes, in_text: int) -> tuple[bytes, int]:
    """A slice with zeros for the bytes of texts, given whether it begins within one; and whether it ends within one."""
    plain = part
    if b"\\" in part:  # replacing takes long, even of nothing
        plain = part.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")  # of the same length
    if not in_text and b'"' not in plain:
        return plain, 0
    octets = np.frombuffer(plain, np.uint8)
    inside = (np.cumsum(octets == ord('"'), dtype=np.uint8) + in_text) & 1
    return np.where(inside, 0, octets).tobytes(), int(inside[-1])


def scan(text: bytes | bytearray, begin: int, end: int, nbytes: int, depth: int = 0) -> Iterator[Slice]:
    """The slices of a part of a document, of about so many bytes. It need not be valid, but begins within no text."""
    in_text = 0
    while begin < end:
        stop = min(_unescaped_end(text, begin, begin + nbytes), end)
        part = Slice(text, begin, stop, depth, in_text)
        yield part
        begin, depth, in_text = stop, part.last_depth, part.ends_in_text


def _unescaped_end(text: bytes | bytearray, begin: int, end: int) -> int:
    """The end of a slice, or one more if an escape would be cut there."""
    part = text[begin:end]
    return end + (len(part) - len(part.rstrip(b"\\"))) % 2
