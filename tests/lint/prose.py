"""The manual and the READMEs are plain English: patterns of translated prose are kept out.

Why patterns of our own and no linter from PyPI: proselint and its kind look for clichés and typography in native prose.
The faults here are of one sort, relative clauses without a noun and passives without an actor, and a list of regular
expressions names them exactly, each with what to write instead.

To hold docstrings, comments and messages to this too, add globs to :data:`CODE`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "envs/**/*.md", "tests/**/*.md")
"""Pages that are held to the patterns."""

CODE: tuple[str, ...] = (
    "host/pybackend/**/*.py",
    "sdk/**/*.py",
    "stub/**/*.py",
)
"""Python files whose docstrings, comments and strings are held to them, e.g. ``"host/**/*.py"``."""


class Pattern(NamedTuple):
    """A fault: what finds it, what to write instead, and text in which it must be found."""

    expression: str
    instead: str
    example: str


PATTERNS = (
    Pattern(
        r"(?:^|(?<=[.;:!?] )|(?<=\| ))(?:What|Whatever|Who|Whose|Whom|That what) [^.?!:|]*(?:[.!;](?= |$|\|)|,|$)",
        "begin with a noun: 'Unsupported fields fail the load'",
        "What a configuration asks for and cannot get is said when the model is loaded",
    ),
    Pattern(
        r"\b[Ww]ho(?:so)?(?:m)?ever\b",
        "'anyone who', 'clients that'",
        "the server never waits for whoever reads its log",
    ),
    Pattern(
        r"\b(?:is|are|was|be|been|and) said\b|\bis told (?:so|when)\b",
        "name who says it: 'the log says', 'the error names'",
        "a layer that cannot be applied is left out, and said",
    ),
    Pattern(r"\b(?:is|are|was|were) (?:not )?looked (?!up\b)", "'the server checks'", "it is looked whether it exists"),
    Pattern(r"\b(?:be|is|are|was|were|been) asked for\b", "'requested', 'needed'", "levels below must be asked for"),
    Pattern(r"\bas (?:it|they) comes?\b", "'by default', 'as it arrives'", "everything else as it comes"),
    Pattern(r"\bshould like\b", "'wants', 'needs'", "Whose code waits for a reply should like to be heard"),
    Pattern(
        r"\bof (?:its|their|his|the model's|models') own(?! accord)\b",
        "'its own process', 'a separate process'",
        "each instance in a process of its own",
    ),
    Pattern(r"\bof (?:its|their) own accord\b", "'automatically'", "what the server does of its own accord"),
    Pattern(
        r"\b(?:runs?|takes?|has|have) no \w+, and no\b|\bno (?:request|message)s? pass(?:es)?\b",
        "'They run no models and handle no requests'",
        "The zygote and the warden run no model, and no request passes them",
    ),
    Pattern(r": that is\.", "define the term: 'bundle: directory of staged stub code'", "bundle: that is."),
    Pattern(
        r"\bdid not end within\b|(?<!or )\band is (?:killed|ended)\b",
        "'missed its limit and is being killed'",
        "instance 'm_0' did not end within 5.0 s and is killed",
    ),
    Pattern(
        r", also (?:when|if|where|in|for|a|an|the|after|with|those|to|as|by|of|at)\b|\balso (?:when|if|where)\b",
        "'even if', 'including'",
        "readiness turns, also when the server is killed",
    ),
    Pattern(
        r"\b(?:is|are) to be\b(?! (?:seen|expected)\b)", "'must be', 'should be'", "which versions are to be served"
    ),
    Pattern(r"\b[Nn]othing of (?:this|it|that|the)\b", "'none of this'", "Nothing of this has to be configured"),
    Pattern(
        r"(?:^|(?<=[.!?] ))Of (?:a|an|the|its|all|those|these) ",
        "begin with the subject: 'For a call ...', 'An ensemble counts ...'",
        "Of an ensemble there are requests and their times",
    ),
    Pattern(
        r"\b(?:is|are) (?:taken|held) for\b|\bheld against\b",
        "'treated as', 'checked against'",
        "are taken for hostile",
    ),
    Pattern(r"\b(?:anew|hereby|whereby|wherein|thereof)\b", "'again'", "the entries are printed anew"),
    Pattern(
        r"\b(?:what|which) (?:is|was) (?:there|left|due|kept|needed|wanted)\b",
        "name the thing",
        "it reads what is there",
    ),
    Pattern(r"\bthan (?:what|there is)\b", "name the thing", "because they need more than there is"),
    Pattern(r"\bthat (?:is|are) none\b|\bis none of\b", "'is not a ...', 'any other'", "a level that is none"),
    Pattern(r"\bfor want of\b|\bso as to\b|\bin words\b", "'without', 'to'", "skipped for want of torch"),
    Pattern(r"\b(?:has|have|had) to be (?:given|said|done)\b", "'must'", "a new package has to be given its place"),
    Pattern(
        r"\b(?:nobody|no one|somebody) (?:any more|has asked|whoever)\b", "say who", "those that nobody has asked for"
    ),
    Pattern(
        r"\bat hand\b|\bunder way\b|\bthe former\b|\bthe latter\b",
        "'current', 'running'",
        "requests under way are answered",
    ),
)

_CODE_BLOCK = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"``.+?``|`[^`]+`")
_LINK_TARGET = re.compile(r"\]\([^)]*\)")


def paragraphs(page: str) -> Iterator[str]:
    """The text of a Markdown page: paragraphs, list items and table rows, each as one line without code and headings."""
    page = _CODE_BLOCK.sub("\n\n", page)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*|-]|\d+\.) )|\n(?=\|)", page):
        text = " ".join(line.strip() for line in block.splitlines())
        if not text.startswith(("#", "|--", "---", "<!--")):
            text = re.sub(r"^(?:[*-]|\d+\.) ", "", text).replace("**", "")
            yield _LINK_TARGET.sub("]", _INLINE_CODE.sub("X", text)).replace("[", "").replace("]", "")


def texts_of_code(source: str) -> Iterator[str]:
    """The docstrings, comments and other strings with blanks of a Python file, each as one line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#: ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from (" ".join(part.split()) for part in node.value.split("\n\n"))


def faults_in(text: str) -> list[str]:
    """What is wrong with a text, and what to write instead."""
    return [
        f"{found[0]!r} in {text[max(0, found.start() - 40) : found.end() + 40]!r}: {pattern.instead}"
        for pattern in PATTERNS
        for found in re.finditer(pattern.expression, text)
    ]


def _files(globs: tuple[str, ...]) -> list[Path]:
    found = {path for pattern in globs for path in ROOT.glob(pattern)}
    return sorted(path for path in found if "node_modules" not in path.parts)  # the pages of other projects


def faults() -> Iterator[str]:
    """All pages and texts of the code that are not plain English."""
    for path in _files(PAGES):
        yield from _faults_of(path, paragraphs(path.read_text()))
    for path in _files(CODE):
        yield from _faults_of(path, texts_of_code(path.read_text()))


def _faults_of(path: Path, texts: Iterable[str]) -> Iterator[str]:
    return (f"{path.relative_to(ROOT)}: {fault}" for text in texts for fault in faults_in(text))
