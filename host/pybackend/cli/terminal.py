"""Command lines and output, as commands share them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def print_text(text: str) -> None:
    """Print lines of text. A reader that has left, such as ``head``, is no error."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the interpreter must not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after ``--``."""
    listed = list(arguments)
    if "--" not in listed:
        return listed, []
    at = listed.index("--")
    return listed[:at], listed[at + 1 :]
