"""Prose of pages has lines of 120 columns at most: ``python -m tests.lint.columns`` wraps what is longer.

Tables, code and headings cannot be wrapped, and a word longer than a line, such as a link, stays whole.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 120

_FENCE = re.compile(r"\s*(```+|~~~+)")
_ITEM = re.compile(r"(\s*)(?:[*+-]|\d+\.)\s+")
_CODE = re.compile(r" {4}(?! *(?:[*+-]|\d+\.) )")
"""The beginning of a line of code without a fence, where a paragraph could begin."""
_NO_PROSE = ("|", "#", "<", "!!!", "===", "![", "---", ">", ":")
_WORD = re.compile(r"(?:(`+)[^`](?:.*?[^`])??\1(?!`)|[^ ])+")
"""A word; code between backticks is one, whatever blanks it has."""
_MEANS_MORE = re.compile(r"(?:[*+-]+|#+|\d+[.)]|[>|:=].*|```.*|!!!.*)$")
"""Words that would begin something else at the start of a line."""


def pages() -> list[Path]:
    """All pages but the list of changes, whose lines are as long as their entries."""
    below = (path for folder in ("docs", "examples", "envs", "tests") for path in (ROOT / folder).rglob("*.md"))
    packages = (path for folder in ("host", "stub", "sdk") for path in (ROOT / folder).glob("*/README.md"))
    found = {*ROOT.glob("*.md"), *below, *packages} - {ROOT / "CHANGELOG.md"}
    return sorted(path for path in found if "node_modules" not in path.parts)


def faults() -> Iterator[str]:
    """The pages that wrapping would change."""
    for page in pages():
        if wrapped(text := page.read_text()) != text:
            yield f"{page.relative_to(ROOT)}: prose beyond column {WIDTH}: `make format` wraps it"


def wrapped(text: str) -> str:
    """The text of a page, in which paragraphs and items that have a long line are filled again."""
    lines, done, fence = text.split("\n"), [], ""
    while lines:
        line = lines.pop(0)
        opening = _FENCE.match(line)
        if fence or opening:
            done.append(line)
            fence = _next_fence(fence, opening)
            continue
        begins = not done or not done[-1].strip()
        if not line.strip() or line.lstrip().startswith(_NO_PROSE):
            done.append(line)
            continue
        if begins and _CODE.match(line) and not _is_in_an_item(done):
            done.append(line)
            while lines and lines[0].startswith("    "):
                done.append(lines.pop(0))
            continue
        block = [line]
        while lines and _continues(lines[0]):
            block.append(lines.pop(0))
        done += _filled(block) if max(map(len, block)) > WIDTH else block
    return "\n".join(done)


def _is_in_an_item(done: list[str]) -> bool:
    """Whether what comes next, if it is indented, belongs to an item of a list."""
    above = next((line for line in reversed(done) if line.strip()), "")
    return bool(_ITEM.match(above)) or above.startswith(" ")


def _next_fence(fence: str, found: re.Match[str] | None) -> str:
    """The fence that must end the code that a line is in; empty if it is in none afterwards."""
    if not fence:
        return found[1] if found else ""
    return "" if found and found[1] == fence else fence


def _continues(line: str) -> bool:
    """Whether a line belongs to the paragraph or item above it."""
    text = line.strip()
    return bool(text) and not (_ITEM.match(line) or _FENCE.match(line) or text.startswith(_NO_PROSE))


def _filled(block: list[str]) -> list[str]:
    item = _ITEM.match(block[0])
    first = item[0] if item else " " * (len(block[0]) - len(block[0].lstrip()))
    indent = " " * len(first)
    if item and len(block) > 1:
        indent = " " * (len(block[1]) - len(block[1].lstrip()))
    lines, text = [], ""
    for match in _WORD.finditer(" ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])):
        word = match[0]
        if not text:
            text = first + word
        elif len(text) + 1 + len(word) <= WIDTH or _MEANS_MORE.match(word):
            text += f" {word}"
        else:
            lines.append(text)
            text = indent + word
    return [*lines, text]


if __name__ == "__main__":
    for page in pages():
        page.write_text(wrapped(page.read_text()))
