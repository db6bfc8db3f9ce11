"""The linters of ``tests/lint`` find what they are for, and pass what is right."""

import re

import pytest

from tests.lint.columns import WIDTH, wrapped
from tests.lint.prose import PATTERNS, faults_in, paragraphs, texts_of_code
from tests.lint.quoted_texts import is_in_the_source
from tests.lint.snapshots import unused


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
    assert [fault for paragraph in paragraphs(text) for fault in faults_in(paragraph)]


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
    assert [fault for paragraph in paragraphs(text) for fault in faults_in(paragraph)] == []


def test_texts_of_code_are_found():
    source = (
        '"""Whoever reads this."""\n\n\ndef f():\n    # it is looked whether\n    raise ValueError("and is said")\n'
    )
    assert len([fault for text in texts_of_code(source) for fault in faults_in(text)]) == 3


def test_a_stale_quote_is_found():
    assert not is_in_the_source("Socket '0.0.0.0:8000' is taken by somebody else")
    assert is_in_the_source("Socket '0.0.0.0:8000' already in use")


def test_a_snapshot_without_its_row_is_found():
    names = ["test_a[x]", "test_a[x].1", "test_a[y]", "test_b"]
    assert unused(names, {"test_a[x]", "test_b"}) == ["test_a[y]"]


WORD, CODE, LINK = "w" * 50, "`some code of several words, which stays whole`", "[a link](" + "x" * 60 + ".md)"
UNTOUCHED = f"# {WORD} {WORD} {WORD}\n\n| {WORD} | {WORD} {WORD} |\n\n```\n{WORD} {WORD} {WORD}\n```\n\n    make {WORD} {WORD} {WORD}\n    make\n\nshort\nlines stay\n"
"""A heading, a table, code and a paragraph without a long line."""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (UNTOUCHED, UNTOUCHED),
        (f"{WORD} {WORD} {CODE}\nends.\n", f"{WORD} {WORD}\n{CODE} ends.\n"),
        (f"{WORD} {WORD} {WORD}{LINK}\n", f"{WORD} {WORD}\n{WORD}[a\nlink]{LINK.partition(']')[2]}\n"),
        (f"* {WORD} {WORD} {WORD}\n  goes on\n* next\n", f"* {WORD} {WORD}\n  {WORD} goes on\n* next\n"),
        (f"1. {WORD} {WORD} {WORD}\n", f"1. {WORD} {WORD}\n   {WORD}\n"),
    ],
)
def test_long_prose_is_wrapped_and_nothing_else(page, expected):
    assert wrapped(page) == expected


@pytest.mark.parametrize("mark", ["-", "*", "1.", "#", "|", ">"])
def test_a_wrapped_line_begins_nothing_else(mark):
    assert wrapped("x" * (WIDTH - 1) + f" {mark} more").splitlines()[0].endswith(f" {mark}")
