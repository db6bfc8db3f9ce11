"""Explains to an author why a config.pbtxt does not parse: the position, the mistake and the likely intention."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pybackend.spelling import closest, cut_between_words

_SKIPPED = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|[{}\[\]<>]""")
_CLOSING = {"{": "}", "[": "]", "<": ">"}
_SNIPPET_LENGTH = 60
_REASON_LENGTH = 300
_MOST_BRACKETS = 3
_VICINITY = 200
"""How far around the place words are searched: an expression on a megabyte of text could take minutes."""


class OpenBracket(NamedTuple):
    """A bracket or brace that is not closed."""

    character: str
    line: int  # counted from 1
    quoted: str  # the start of that line

    def __str__(self) -> str:
        return f"the {self.character} of line {self.line} ({self.quoted})"


@dataclass(frozen=True)
class TextPosition:
    """A place in a text."""

    text: str
    line: int  # counted from 1
    column: int  # counted from 1

    @property
    def offset(self) -> int:
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


_OTHER_NAMES: Mapping[str, str] = {
    "shape": "dims",
    "dtype": "data_type",
    "type": "data_type",
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_FLOAT64": "TYPE_FP64",
    "TYPE_DOUBLE": "TYPE_FP64",
    "TYPE_INT": "TYPE_INT32",
    "TYPE_LONG": "TYPE_INT64",
    "TYPE_BYTES": "TYPE_STRING",
}
"""Names that other tools use, and the fields or values that they mean."""

_PARAMETER = 'a parameter is written parameters { key: "NAME" value: { string_value: "TEXT" } }'


def _advice(reason: str, place: TextPosition, pool: Any) -> str:
    """Advice, to be appended to the parser's reason; empty if there is none."""
    for pattern, advise in _ADVICE.items():
        if match := re.match(pattern, reason):
            return advise(match, place, pool)
    return ""


def nearest(word: str, known: list[str]) -> str:
    """A sentence, preceded by a space, that offers the closest known word, or else lists all of them."""
    bare = word.strip("\"'")
    suffixed = [name for name in known if name.endswith(f"_{bare}")]  # TYPE_FP32 for FP32
    if bare in known:
        return f" Write {bare} without quotes."
    for other in (bare, bare.upper(), f"TYPE_{bare}".upper()):
        if _OTHER_NAMES.get(other) in known:
            return f" Did you mean {_OTHER_NAMES[other]}?"
    if near := closest(bare, known):
        return f" Did you mean {near}?"
    if suffixed:
        return f" Did you mean {suffixed[0]}?"
    return f" Known: {', '.join(known)}."


def _unknown_field(match: re.Match[str], place: TextPosition, pool: Any) -> str:
    message, word = pool.FindMessageTypeByName(match[1]), match[2]
    if word.isdecimal():
        return "; write several numbers in brackets, as in dims: [ 4, 4 ]"
    if message.name == "ParametersEntry":
        return f"; {_PARAMETER}"
    outer = place.open_brackets()
    if outer and _is_top_level(word, pool, match[1]):
        return f"; it belongs to the model itself: close {outer[-1]} before it"
    return nearest(word, list(message.fields_by_name))


def _is_top_level(word: str, pool: Any, inner: str) -> bool:
    config = pool.FindMessageTypeByName("inference.ModelConfig")
    return word in config.fields_by_name and inner != config.full_name


def _unknown_value(match: re.Match[str], _place: TextPosition, pool: Any) -> str:
    return nearest(match[2], list(pool.FindEnumTypeByName(match[1]).values_by_name))


def _one_of(match: re.Match[str], _place: TextPosition, _pool: Any) -> str:
    return f" Keep one of {match[2]} and {match[1]}, and remove the other."


def _block_expected(_match: re.Match[str], place: TextPosition, _pool: Any) -> str:
    if place.previous == ",":
        return f"; remove the comma before {place.word}"
    if place.field == "value":
        text = place.word if place.word.startswith('"') else f'"{place.word}"'
        return f"; write value: {{ string_value: {text} }}"
    return f"; {place.field} is a block: write {place.field} {{ }}, with its fields between the braces"


def _name_expected(match: re.Match[str], place: TextPosition, _pool: Any) -> str:
    found, brackets = match[1], place.open_brackets()
    if found in {"}", "]"}:
        return _stray(found, place)
    if found == "{" and not brackets:
        return '; this is not JSON: leave out the outermost braces and the quotes of names, as in backend: "python"'
    if found == "/":
        return "; comments begin with #"
    if re.search(r"\bvalue\s*:?\s*\{\s*\Z", place.before):
        return f"; write value: {{ string_value: {found} }}"
    if re.search(r"\bparameters\s*:?\s*\[?\s*\{\s*\Z", place.before):
        return f"; {_PARAMETER}"
    if found[:1] in {'"', "'"}:
        return "; names of fields are written without quotes"
    return ""


def _stray(found: str, place: TextPosition) -> str:
    if place.previous == ",":
        return f"; remove the comma before {found}"
    brackets = place.open_brackets()
    return (
        f"; {brackets[-1]} is still open" if brackets else f"; nothing is open that this {found} could close: remove it"
    )


def _comma_expected(_match: re.Match[str], place: TextPosition, _pool: Any) -> str:
    brackets = place.open_brackets()
    return f"; {brackets[-1]} is still open" if brackets else ""


def _colon_expected(_match: re.Match[str], place: TextPosition, _pool: Any) -> str:
    if place.word == "=":
        return "; write a colon instead of ="
    return f"; write {place.field}: {place.word}"


def _number_expected(match: re.Match[str], place: TextPosition, _pool: Any) -> str:
    found = match[1]
    if found.strip("\"'").isdecimal():
        return "; write the number without quotes"
    if found == "(":
        return f"; write several numbers in brackets, as in {place.field}: [ 4, 4 ]"
    return f"; {place.field} is a whole number" if place.field else "; write a whole number"


def _text_expected(_match: re.Match[str], place: TextPosition, _pool: Any) -> str:
    if place.word[:1] in {"\u201c", "\u201d", "\u2018", "\u2019"}:
        return '; write straight double quotes, as in "python"'
    return f'; put text in double quotes: "{place.word}"' if place.word.isalnum() else "; put text in double quotes"


def _always(text: str) -> Callable[[re.Match[str], TextPosition, Any], str]:
    return lambda _match, _place, _pool: text


_ADVICE: Mapping[str, Callable[[re.Match[str], TextPosition, Any], str]] = {
    r'Message type "([\w.]+)" has no field named "([^"]*)"': _unknown_field,
    r'Enum type "([\w.]+)" has no value named (\S+?)\.?$': _unknown_value,
    r'Message type "[\w.]+" should not have multiple': _always(" Remove one of the two."),
    r'Field "(\w+)" is specified along with field "(\w+)"': _one_of,
    r'Expected "\{"': _block_expected,
    r'Expected ","': _comma_expected,
    r'Expected ":"': _colon_expected,
    r"Expected identifier or number, got (.+?)\.?$": _name_expected,
    r"Couldn't parse integer: (.+)$": _number_expected,
    r"Expected string": _text_expected,
    r"Invalid escape sequence": _always("; write \\\\ for a backslash"),
    r"There is a byte that is not UTF-8": _always("; save the file as UTF-8"),
    r"String missing ending quote": _always("; end the text with a quote on the same line"),
}


def parse_reason(reason: str, line: int | None, column: int | None, text: str, pool: Any) -> str:
    """The reason that protobuf's text format gives, preceded by the position and followed by advice."""
    if line is None or column is None:
        return _readable(reason)
    lines = text.split("\n")
    shown = lines[line - 1] if line <= len(lines) else ""
    reason = re.sub(r"^\d+:\d+ : ", "", reason)
    # text_format quotes the line before its reason, except at the end of the text.
    at_end = reason.startswith(("'': ", 'Expected "'))
    reason = reason.removeprefix("'': ").removeprefix(f"'{shown}': ")
    if at_end and reason.startswith("Expected"):
        end = TextPosition(text, len(lines), len(lines[-1]) + 1)
        return f"line {line}, column {column}: {_readable(reason)}{_printable(_end(end))}"
    hint = _advice(reason, TextPosition(text, line, column), pool)
    reason = reason.removesuffix(".") if hint.startswith(";") else reason
    return f"line {line}, column {column}: {_readable(reason)}{_printable(hint)} (in: {_readable(_snippet(shown, column))})"


def _end(place: TextPosition) -> str:
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
    return _printable(cut_between_words(reason, _REASON_LENGTH))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
