"""What commands print to stdout."""

from __future__ import annotations

import os
import sys


def print_text(text: str) -> None:
    """Print lines of text. A reader that has left, such as ``head``, is no error."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the interpreter must not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
