"""Rewrites a config.pbtxt so that protobuf's parser in Python reads what the one in C++, which the reference has, reads in it.

They differ in escapes, in bytes that are not UTF-8, and in a space between a sign and its number. Lines stay where they are.
"""

import re

from google.protobuf.text_format import ParseError

REPLACEMENT = "\ufffd"
"""Stands for a byte in a string that is not UTF-8."""

_COMMENT = r"#[^\n]*"
_STRING = r""""(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*'"""
_GAP = rf"(?:\s|{_COMMENT}(?:\n|\Z))*"
_PARTS = re.compile(
    rf"(?P<comment>{_COMMENT})"
    rf"|(?P<strings>(?:{_STRING})(?:{_GAP}(?:{_STRING}))*)"
    r"|(?P<open>[\"'][^\n]*)"
    rf"|-(?P<gap>{_GAP})(?=[\w.])"
    r"|(?P<stray>[\udc80-\udcff])"
)
_PIECES = re.compile(rf"{_COMMENT}|(?P<string>{_STRING})")
_ODD = re.compile(r"[\\\udc80-\udcff]")
_ESCAPE = re.compile(
    rb"\\(?:(?P<octal>[0-7]{1,3})"
    rb"|[xX](?P<hex>[0-9a-fA-F]{1,2})"
    rb"|u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|u(?P<short>[0-9a-fA-F]{4})"
    rb"|U(?P<long>00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})"
    rb"|(?P<letter>[abfnrtv\\?'\"]))?"
)
_LETTERS = dict(zip(b"abfnrtv\\?'\"", b"\a\b\f\n\r\t\v\\?'\"", strict=True))
_UNSAFE = re.compile(r'[\\"\x00-\x1f\x7f]')


def rewritten(text: str) -> str:
    """The text for the parser in Python. Surrogates in ``text`` stand for bytes that are not UTF-8.

    Raises ParseError: a string has an escape that protobuf does not know, or there is such a byte outside comments and
    strings.
    """
    return _PARTS.sub(_rewritten, text)


def _rewritten(part: re.Match[str]) -> str:
    if part["stray"] is not None:
        raise _error("There is a byte that is not UTF-8.", part.string, part.start())
    if part["strings"] is not None:
        return _one_string(part) if _ODD.search(part["strings"]) else part["strings"]
    if part["gap"] is not None:
        return f"{_visible(part['gap'])}-"
    return _visible(part[0])


def _one_string(part: re.Match[str]) -> str:
    """Adjacent strings as one: a character may begin in one of them and end in the next."""
    value = bytearray()
    for piece in _PIECES.finditer(part["strings"]):
        if piece["string"] is None:
            continue
        inner = piece["string"][1:-1].encode("utf-8", "surrogateescape")
        try:
            value += _ESCAPE.sub(_unescaped, inner)
        except _EscapeError as error:
            offset = len(inner[: error.offset].decode("utf-8", "surrogateescape"))
            at = part.start() + piece.start() + 1 + offset
            raise _error("Invalid escape sequence in string literal.", part.string, at) from None
    written = _UNSAFE.sub(lambda found: f"\\{ord(found[0]):03o}", _readable(value))
    return f'"{written}"' + "\n" * part["strings"].count("\n")


class _EscapeError(Exception):
    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


def _unescaped(escape: re.Match[bytes]) -> bytes:
    kind = escape.lastgroup
    if kind is None:
        raise _EscapeError(escape.start())
    found = escape[kind]
    match kind:
        case "octal":
            return bytes([int(found, 8) % 256])
        case "hex":
            return bytes([int(found, 16)])
        case "low":
            return bytes.fromhex((escape["high"] + found).decode()).decode("utf-16-be").encode()
        case "letter":
            return bytes([_LETTERS[found[0]]])
    return chr(int(found, 16)).encode("utf-8", "surrogatepass")


def _visible(text: str) -> str:
    return _readable(text.encode("utf-8", "surrogateescape"))


def _readable(text: bytes | bytearray) -> str:
    return text.decode("utf-8", "replace")


def _error(reason: str, text: str, offset: int) -> ParseError:
    return ParseError(reason, text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))
