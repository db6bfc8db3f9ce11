"""Huffman coding of header blocks (RFC 7541 section 5.2 and appendix B).

The code is a canonical one, as those of deflate are (RFC 1951), but for symbols of more than 15 bits, and they are
rare. So zlib can decode it, in a tenth of the time that a loop takes. It reads a block with our code lengths, in which
the end of the block has the code with which all longer ones begin. Deflate counts bits from the other end of each byte.
"""

import zlib
from typing import Any, Final

from hpack.huffman_constants import REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as decode_slowly

_LENGTHS: Final = bytes(REQUEST_CODES_LENGTH[:256])
"""The codes' lengths in bits, by symbol."""

_MOST_BITS: Final = 15
"""The longest code of deflate."""

_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _inflater() -> Any:
    """A decompressor that has read the beginning of a block (RFC 1951 section 3.2.7), and goes on with our code."""
    bits = ""

    def add(value: int, count: int) -> None:
        nonlocal bits
        bits += f"{value:0{count}b}"[::-1]

    for _ in range(3):  # empty blocks, so that what follows begins with a byte
        add(0b010, 3)
        add(0, 7)
    add(0b101, 3)
    add(0, 5 + 5)
    add(19 - 4, 4)
    for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15):
        add(4 if symbol <= _MOST_BITS else 0, 3)
    for length in [*_LENGTHS, _MOST_BITS, 1]:  # with the end of the block, and a distance that never occurs
        bits += f"{length if length <= _MOST_BITS else 0:04b}"
    made = zlib.decompressobj(-9)
    made.decompress(bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8)))
    return made


_begun: Final = _inflater()


def decode_huffman(encoded: bytes) -> bytes:
    """Return the text of a string.

    Raises:
        hpack.HPACKDecodingError: it has the symbol that ends all texts, or its end is not padded as it must be.
    """
    if not encoded:
        return b""
    nbits = 8 * len(encoded)
    inflater = _begun.copy()
    text: bytes = inflater.decompress(encoded.translate(_REVERSED), nbits)
    padding = (1 << nbits - sum(text.translate(_LENGTHS))) - 1
    if padding > 0x7F or encoded[-1] & padding != padding or inflater.eof:
        return decode_slowly(encoded)
    return text
