"""Command lines and output, as commands share them."""

import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from pybackend.observability.log_lines import one_line

_WIDTH = 120
_WITHIN_LINES = re.compile(r"[^\n\t]+")
_COMMAND, _FIXED_SPACE = re.compile(r"`[^`]*`"), "\N{NO-BREAK SPACE}"


def print_text(text: str) -> None:
    """Print lines of text. A reader that has left, such as ``head``, is no error."""
    try:
        sys.stdout.write(f"{_harmless(text)}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the interpreter must not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(text: str) -> None:
    """Print lines of text to standard error."""
    sys.stderr.write(f"{_harmless(text)}\n")


def _harmless(text: str) -> str:
    """The same lines, in which nothing changes the terminal: names, errors and answers are those of models."""
    return _WITHIN_LINES.sub(lambda line: one_line(line[0]), text)


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def has_terminal() -> bool:
    """Whether somebody can answer questions: standard input and standard output are terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and is_terminal()


def terminal_size() -> tuple[int, int]:
    """The columns and lines of the terminal."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines


def table_lines(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """The lines of a table: columns are as wide as their widest cell.

    ``rows``: of the same length; the first one has the headings. ``left``: number of columns that are aligned to the
    left; the others are numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def wrapped(text: str, first: str, others: str) -> list[str]:
    """Lines that break neither words nor commands, which are copied from the terminal.

    ``text``: in one line; commands stand in backticks. ``first``: begins the first line. ``others``: begins the other
    lines.
    """
    lines = textwrap.wrap(
        _COMMAND.sub(lambda command: command[0].replace(" ", _FIXED_SPACE), text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_FIXED_SPACE, " ") for line in lines]


def divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after ``--``."""
    listed = list(arguments)
    if "--" not in listed:
        return listed, []
    at = listed.index("--")
    return listed[:at], listed[at + 1 :]


def counted(number: int, noun: str) -> str:
    """``1 model``, ``2 models``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


SLOW_S = 2.0
"""A command that works for longer says what it does."""


@contextmanager
def said_if_slow(what: str) -> Iterator[None]:
    """Say on standard error what is done in a ``with`` block, if that takes long."""
    timer = threading.Timer(SLOW_S, lambda: sys.stderr.write(f"{what} ...\n"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    """A handler of SIGTERM for commands that write: the exception removes unfinished files on its way out."""
    raise SystemExit(128 + signal.SIGTERM)
