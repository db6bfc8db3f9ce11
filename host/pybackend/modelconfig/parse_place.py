"""Where a config.pbtxt stopped making sense: the words around that place, and the brackets that are open there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_SKIPPED = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|[{}\[\]<>]""")
_CLOSING = {"{": "}", "[": "]", "<": ">"}
_SNIPPET_LENGTH = 60
_MOST_BRACKETS = 3
_VICINITY = 200
"""How far around the place words are searched: an expression on a megabyte of text could take minutes."""


class OpenBracket(NamedTuple):
    """A bracket or brace that is not closed.

    Attributes:
        line: counted from 1.
        quoted: the start of that line.
    """

    character: str
    line: int
    quoted: str

    def __str__(self) -> str:
        return f"the {self.character} of line {self.line} ({self.quoted})"


@dataclass(frozen=True)
class Place:
    """A place in a text.

    Attributes:
        line: counted from 1.
        column: counted from 1.
    """

    text: str
    line: int
    column: int

    @property
    def offset(self) -> int:
        """Characters before it."""
        lines = self.text.split("\n")[: self.line - 1]
        return sum(map(len, lines)) + len(lines) + self.column - 1

    @property
    def word(self) -> str:
        """The word, number, quoted text or sign that begins here; empty at the end of the text."""
        following = self.text[self.offset : self.offset + _VICINITY]
        found = re.match(r'\s*("[^"\n]*"?|\'[^\'\n]*\'?|[\w.+-]+|\S)', following)
        return found[1] if found else ""

    @property
    def before(self) -> str:
        """The text that ends here, without its far beginning."""
        return self.text[max(0, self.offset - _VICINITY) : self.offset]

    @property
    def field(self) -> str:
        """The name of the field whose value begins here, empty if it is unknown."""
        found = re.search(r"(\w+)\s*:?\s*\Z", self.before)
        return found[1] if found else ""

    @property
    def previous(self) -> str:
        """The last character before it that is no space."""
        return self.before.rstrip()[-1:]

    def open_brackets(self) -> list[OpenBracket]:
        """The brackets that are open here, the innermost last; at most three."""
        brackets: list[tuple[str, int]] = []
        for found in _SKIPPED.finditer(self.text, 0, min(self.offset, len(self.text))):
            if found[0] in _CLOSING:
                brackets.append((found[0], found.start()))
            elif brackets and found[0] == _CLOSING[brackets[-1][0]]:
                brackets.pop()
        return [self._bracket(character, start) for character, start in brackets[-_MOST_BRACKETS:]]

    def _bracket(self, character: str, start: int) -> OpenBracket:
        line = self.text.count("\n", 0, start)
        return OpenBracket(character, line + 1, self.text.split("\n")[line].strip()[:_SNIPPET_LENGTH])
