"""Errors and log lines that the manual quotes are texts of the source.

A quote differs from the source in its values (names, numbers, paths). It is split at them, and each remaining piece
must be part of a string in the source.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

VALUE = re.compile(
    r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|\[[^\]]*\]|<[^>]*>|\{[^}]*\}|\.\.\.|->"  # quoted, in brackets, left out
    r"|\S*/\S+|--[\w-]+|\b\w+\.(?:py|pbtxt|lib|tar\.gz)\b"  # paths, flags, files
    r"|[\w-]*\d[\w.]*"  # numbers, and names with numbers
    r"|\b[a-zA-Z]\b'?|\bFILE\b|\bmodels$|\b(?:mode|mean|split|add_sub|talker|HTTPService)\b|\|"  # names in examples
    r"|\bPython(?= \d)|\bglibc(?= [\d.]+$)|\bUNAVAILABLE\b"
    r"|(?<=\w): |(?<=[\w)])\. |\bThe process\b|(?<=inconsistent) "  # where a text is put together from two
)
"""Parts of a quote that stand for values, or where one text ends and another begins."""

QUOTE = re.compile(r"``(.+?)``|`([^`]+)`")
CALL = re.compile(r"\w+\(")

TABLES = {
    "operators/troubleshooting.md": 0,
    "authors/bls.md": 2,
    "authors/decoupled.md": 0,
    "authors/errors.md": 0,
    "authors/ensembles.md": 0,
    "authors/environments.md": 1,
    "operators/model-control.md": 0,
}
"""Pages with tables of messages, and the column that quotes them."""

FROM_PYTHON = (
    "ModuleNotFoundError: No module named",
    "PermissionError: [Errno 13] Permission denied",
    "SyntaxError: ",
    "has no attribute 'TritonPythonModel'",
    "AttributeError: 'NoneType' object has no attribute 'as_numpy'",
    "Fatal Python error: ",
    '  File \\"/models/',
)
"""Quotes that are CPython's."""

FROM_SYSTEM = frozenset(
    {
        "ValueError",
        "no weights",
        "Permission denied",
        "No module named",
        "No such file or directory",
        "Address already in use",
    }
)
"""Pieces that come from CPython, the C library or a model, in texts of ours."""


FROM_MODELS = frozenset(
    {
        "loading the weights",
        "no tokenizer found, using the default one",
        "... and 812 more like it in the last second; last request id 'client-819': ValueError: no weights",
    }
)
"""Log lines of models in examples, and one that is put together from parts."""


@cache
def source_texts() -> str:
    """The strings of all Python files; the values of f-strings and `%` are cut out, a NUL is left in their place."""
    found = []
    for folder in ("host", "stub", "sdk"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%[sdr]|%\.\df", "\0", node.value))
                elif isinstance(node, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                    found.append("".join(map(str, parts)))
    return "\0\n".join(found)


def pieces(quote: str) -> list[str]:
    """The parts of a quote between its values."""
    cut = (piece.strip(" ,.:;()'`") for piece in VALUE.split(quote))
    return [piece for piece in cut if len(piece) > 3]


def is_in_the_source(quote: str) -> bool:
    """True if the pieces of a quote stand in the texts of the source."""
    if any(text in quote for text in FROM_PYTHON):
        return True
    wanted = [piece for piece in pieces(quote) if piece not in FROM_SYSTEM]
    return bool(wanted) and all(piece in source_texts() for piece in wanted)


WORDS = re.compile(r"(?:(?<=\s)|^)[a-z]{2,}(?=[\s,.:;)]|$)")
FEWEST_WORDS = 4
"""Inline code with that many plain words is a message; with fewer it is code or a command."""

COMMANDS = ("pybackend ", "python", "pip ", "apt-get ", "docker ", "curl ", "make ", "git ", "sudo ", "SELECT")
LOG_LINE = re.compile(r"^(?:[EWI](?:\d{4} [\d:.]+ \d+ \S+\])? \"?|error: |warning: )(.+?)\"?$", re.MULTILINE)
OTHER_BLOCKS = re.compile(r"^( *)```(?!python|protobuf|mermaid)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def faults() -> Iterator[str]:
    """The quotes that are no text of the source."""
    for name, quote in dict.fromkeys([*_messages(), *_quotes()]):
        if not is_in_the_source(quote):
            yield f"docs/{name} quotes {quote!r}; not in the source: {pieces(quote)}"


def _messages() -> Iterator[tuple[str, str]]:
    """The messages that pages quote in their sentences, and the lines of logs and errors in their code blocks."""
    for page in sorted(DOCS.rglob("*.md")):
        name, text = str(page.relative_to(DOCS)), page.read_text()
        found = [line for _, block in OTHER_BLOCKS.findall(text) for line in LOG_LINE.findall(block)]
        prose = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
        for one, other in QUOTE.findall(" ".join(prose.split())):
            quote = one or other
            if len(WORDS.findall(quote)) >= FEWEST_WORDS and not quote.startswith(COMMANDS):
                found.append(quote)
        yield from ((name, quote) for quote in found if quote not in FROM_MODELS)


def _quotes() -> Iterator[tuple[str, str]]:
    for name, column in TABLES.items():
        for line in (DOCS / name).read_text().splitlines():
            cells = line.strip().strip("|").split(" | ")
            if not line.startswith("| ") or len(cells) <= column:
                continue
            for one, other in QUOTE.findall(cells[column]):
                if " " in (quote := one or other) and not quote.startswith("--") and not CALL.match(quote):
                    yield name, quote
