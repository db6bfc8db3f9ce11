"""The manual and the READMEs are plain English: patterns of translated prose are kept out.

Why patterns of our own and no linter from PyPI: proselint and its kind look for clichés and typography in native prose.
The faults here are of one sort, relative clauses without a noun and passives without an actor, and a list of regular
expressions names them exactly, each with what to write instead.

To hold docstrings, comments and messages to this too, add globs to :data:`CODE`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "envs/**/*.md", "tests/**/*.md")
"""Pages that are held to the patterns."""

CODE: tuple[str, ...] = (
    "host/pybackend/*.py",
    "host/pybackend/author_files/*.py",
    "host/pybackend/cache/*.py",
    "host/pybackend/calls/*.py",
    "host/pybackend/cli/*.py",
    "host/pybackend/client/*.py",
    "host/pybackend/doctor/*.py",
    "host/pybackend/engine/*.py",
    "host/pybackend/ensemble/*.py",
    "host/pybackend/environment/*.py",
    "host/pybackend/frontend/**/*.py",
    "host/pybackend/http2/*.py",
    "host/pybackend/importing/*.py",
    "host/pybackend/inference/*.py",
    "host/pybackend/instance/*.py",
    "host/pybackend/ipc/*.py",
    "host/pybackend/model/*.py",
    "host/pybackend/modelconfig/*.py",
    "host/pybackend/observability/*.py",
    "host/pybackend/pack/*.py",
    "host/pybackend/process/*.py",
    "host/pybackend/protocol/*.py",
    "host/pybackend/repository/*.py",
    "host/pybackend/sandbox/*.py",
    "host/pybackend/scheduler/*.py",
    "host/pybackend/schema/*.py",
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

ALLOWED: tuple[tuple[str, str, str], ...] = ()
"""Faults that may stand: the page, text that contains the fault, and the reason."""

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


def faults(text: str) -> list[str]:
    """What is wrong with a text, and what to write instead."""
    return [
        f"{found[0]!r} in {text[max(0, found.start() - 40) : found.end() + 40]!r}: {pattern.instead}"
        for pattern in PATTERNS
        for found in re.finditer(pattern.expression, text)
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _files(globs: tuple[str, ...]) -> list[Path]:
    found = {path for pattern in globs for path in ROOT.glob(pattern)}
    return sorted(path for path in found if "node_modules" not in path.parts)  # the pages of other projects


@pytest.mark.parametrize("path", _files(PAGES), ids=_name)
def test_page_is_plain_english(path):
    excused = [text for page, text, _ in ALLOWED if page == _name(path)]
    found = [fault for text in paragraphs(path.read_text()) for fault in faults(text)]
    assert [fault for fault in found if not any(text in fault for text in excused)] == []


@pytest.mark.parametrize("files", CODE)
def test_code_speaks_plain_english(files):
    found = [
        (_name(path), fault)
        for path in _files((files,))
        for text in texts_of_code(path.read_text())
        for fault in faults(text)
    ]
    excused = [(page, text) for page, text, _ in ALLOWED]
    assert [(name, fault) for name, fault in found if not any(name == p and t in fault for p, t in excused)] == []


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.example[:40])
def test_pattern_finds_its_example(pattern):
    assert re.search(pattern.expression, pattern.example)


@pytest.mark.parametrize(
    "text",
    [
        "What a configuration asks for and cannot get is said when the model is loaded, with the file and the field.",
        "The zygote and the warden run no model, and no request passes them.",
        "bundle: that is.",
        "instance '%s' did not end within %.1f s and is killed. An `execute` that waits for something can be why",
        "Whose code waits for an answer should like to be heard.",
    ],
)
def test_faults_that_started_this_list_are_found(text):
    assert [fault for paragraph in paragraphs(text) for fault in faults(paragraph)]


@pytest.mark.parametrize(
    "text",
    [
        "If a configuration asks for something unsupported, loading fails and names the file and the field.",
        "They run no models and handle no requests.",
        "bundle: directory of staged stub code.",
        "Instance '%s' missed its %.1f s stop limit and is being killed.",
        "The host nudges the stub when it needs an answer now.",
        "What should a model return?",
        "`what is there` and\n\n```\nWhat is said here, is code.\n```\n",
    ],
)
def test_plain_sentences_pass(text):
    assert [fault for paragraph in paragraphs(text) for fault in faults(paragraph)] == []


def test_what_is_excused_still_stands():
    assert [entry for entry in ALLOWED if entry[1] not in (ROOT / entry[0]).read_text()] == []


def test_texts_of_code_are_found():
    source = (
        '"""Whoever reads this."""\n\n\ndef f():\n    # it is looked whether\n    raise ValueError("and is said")\n'
    )
    assert len([fault for text in texts_of_code(source) for fault in faults(text)]) == 3
