"""Explains to an author why a config.pbtxt does not parse: the position, the mistake and the likely intention."""

from __future__ import annotations

import re
from typing import Any

from pybackend.modelconfig.parse_advice import advice
from pybackend.modelconfig.parse_place import Place

_SNIPPET_LENGTH = 60
_REASON_LENGTH = 300


def parse_reason(reason: str, line: int | None, column: int | None, text: str, pool: Any) -> str:
    """The reason that protobuf's text format gives, preceded by the position and followed by advice.

    Args:
        reason: the parser's message, including position and quoted line.
        line: counted from 1; None if unknown.
    """
    if line is None or column is None:
        return _readable(reason)
    lines = text.split("\n")
    shown = lines[line - 1] if line <= len(lines) else ""
    reason = re.sub(r"^\d+:\d+ : ", "", reason)
    # text_format quotes the line before its reason, except at the end of the text.
    at_end = reason.startswith(("'': ", 'Expected "'))
    reason = reason.removeprefix("'': ").removeprefix(f"'{shown}': ")
    if at_end and reason.startswith("Expected"):
        end = Place(text, len(lines), len(lines[-1]) + 1)
        return f"line {line}, column {column}: {_readable(reason)}{_printable(_end(end))}"
    hint = advice(reason, Place(text, line, column), pool)
    reason = reason.removesuffix(".") if hint.startswith(";") else reason
    return f"line {line}, column {column}: {_readable(reason)}{_printable(hint)} (in: {_readable(_snippet(shown, column))})"


def _end(place: Place) -> str:
    brackets = place.open_brackets()
    if not brackets:
        return " The text ends here: is a value missing?"
    verb = "is" if len(brackets) == 1 else "are"
    return f" The text ends here, and {' and '.join(map(str, reversed(brackets)))} {verb} not closed."


def _snippet(line: str, column: int) -> str:
    start = max(0, min(column - _SNIPPET_LENGTH // 2, len(line) - _SNIPPET_LENGTH))
    return line[start : start + _SNIPPET_LENGTH].strip()


def _readable(reason: str) -> str:
    """A reason that quotes the author's text, cut and cleaned for one line of a terminal."""
    return _printable(reason if len(reason) <= _REASON_LENGTH else f"{reason[:_REASON_LENGTH]}...")


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
