"""Values of flags: booleans, whole numbers in bounds, log levels."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

_TRUE, _FALSE = {"true", "on", "1"}, {"false", "off", "0"}


def boolean(text: str) -> bool:
    """Parse ``true``, ``on``, ``1``, ``false``, ``off`` or ``0``, in any case."""
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise argparse.ArgumentTypeError(f"invalid value for bool option: {text}. Write true or false")


def integer(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """A parser for whole numbers between ``least`` and ``most``."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"Invalid option value. Got {text}, expected a whole number{_without_unit(text)}"
            ) from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"Provided option value is out of bound. Got {text}, expected {least} to {most}"
            )
        return number

    return parse


def _without_unit(text: str) -> str:
    size = re.fullmatch(r"(\d{1,9})\s*([KMGT])i?B?", text, re.IGNORECASE)
    if size is None:
        return ""
    factor = 1024 ** ("KMGT".index(size[2].upper()) + 1)
    return f" without a unit: {size[1]} {size[2].upper()}iB are {int(size[1]) * factor}"


def verbosity(text: str) -> int:
    """Parse a number, or true as 1 and false as 0."""
    if text.isdecimal():
        return int(text)
    if text.lower() in _TRUE | _FALSE:
        return int(boolean(text))
    raise argparse.ArgumentTypeError(f"invalid value for bool option: {text}. Write a level such as 1, true or false")


def add_switch(group: argparse._ArgumentGroup, name: str, *, default: bool, text: str, depends: bool = False) -> None:
    """Add a flag that is true or false; without a value it is true.

    Args:
        group: gets the flag.
        name: the flag.
        default: its usual value if it is not given.
        text: its meaning.
        depends: other settings decide the value if it is not given; it is None then.
    """
    group.add_argument(
        name,
        type=boolean,
        nargs="?",
        const=True,
        default=None if depends else default,
        metavar="BOOL",
        help=f"{text} [{str(default).lower()}]",
    )
