"""Huffman coding of received header fields (RFC 7541 section 5.2), one byte at a time.

``hpack`` has the code as a table of half bytes. Two of its steps make one step here. A step is computed when it is first needed,
because few of all combinations of state and byte ever occur.
"""

from __future__ import annotations

from typing import Final

from hpack import HPACKDecodingError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

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
    node, flags, text = state >> 8, 0, bytearray()
    for half in (byte >> 4, byte & 0x0F):
        node, flags, symbol = HUFFMAN_TABLE[node * 16 + half]
        if flags & HUFFMAN_FAIL:
            raise HPACKDecodingError("Invalid Huffman string")
        if flags & HUFFMAN_EMIT_SYMBOL:
            text.append(symbol)
    step = (node << 8, bytes(text), bool(flags & HUFFMAN_COMPLETE))
    if len(_steps) >= _MOST_STEPS:
        del _steps[next(iter(_steps))]
    _steps[state | byte] = step
    return step
