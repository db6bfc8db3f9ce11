"""Huffman coding of received header fields (RFC 7541 section 5.2), one byte at a time.

A step from one state with one byte is computed when it is first needed, because few of all combinations of state and byte ever
occur.
"""

from __future__ import annotations

from typing import Final

from hpack import HPACKDecodingError

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
