"""Explains to an author why a config.pbtxt does not parse: the position, the mistake and the likely intention."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

_SNIPPET_LENGTH = 60
_REASON_LENGTH = 300


def parse_reason(reason: str, line: int | None, column: int | None, text: str, pool: Any) -> str:
    """The reason that protobuf's text format gives, preceded by the position and followed by advice.

    Args:
        reason: the parser's message, including position and quoted line.
        line: counted from 1; None if unknown.
        column: counted from 1; None if unknown.
        text: the text that was parsed.
        pool: the descriptors of the messages that ``reason`` may name.
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
        advice = " The text ends here: is a quote, bracket or brace left open?"
    else:
        advice = f"{_advice(reason, pool)} (in: {_readable(_snippet(shown, column))})"
    return f"line {line}, column {column}: {_readable(reason)}{advice}"


def nearest(word: str, known: list[str], least: float = 0.75) -> str:
    """A sentence, preceded by a space, that offers the closest known word, or else lists all of them.

    Args:
        word: the unknown word.
        known: the known words.
        least: how alike two words must be, from 0 to 1.
    """
    near = get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=least)
    if near:
        return f" Did you mean {next(name for name in known if name.lower() == near[0])}?"
    suffixed = [name for name in known if name.endswith(f"_{word}")]  # TYPE_FP32 for FP32
    if suffixed:
        return f" Did you mean {suffixed[0]}?"
    return f" Known: {', '.join(known)}."


def _advice(reason: str, pool: Any) -> str:
    if match := re.match(r'Message type "([\w.]+)" has no field named "([^"]*)"', reason):
        return nearest(match[2], list(pool.FindMessageTypeByName(match[1]).fields_by_name))
    if match := re.match(r'Enum type "([\w.]+)" has no value named (\S+?)\.?$', reason):
        return nearest(match[2], list(pool.FindEnumTypeByName(match[1]).values_by_name))
    if reason.startswith("Expected string"):
        return "; put text in double quotes"
    return ""


def _snippet(line: str, column: int) -> str:
    start = max(0, min(column - _SNIPPET_LENGTH // 2, len(line) - _SNIPPET_LENGTH))
    return line[start : start + _SNIPPET_LENGTH].strip()


def _readable(reason: str) -> str:
    """A reason that quotes the author's text, cleaned for one line of a terminal."""
    shown = reason if len(reason) <= _REASON_LENGTH else f"{reason[:_REASON_LENGTH]}..."
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in shown)
