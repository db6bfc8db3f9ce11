"""``--rate-limit`` and ``--rate-limit-resource``: the resources that instances hold to execute, and their counts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

_MODES = ("off", "execution_count")

ResourceCount = tuple[str, int | None, int]
"""Name, device (None for all) and count."""


def rate_limit_mode(text: str) -> bool:
    """``execution_count`` for True, ``off`` for False."""
    if text not in _MODES:
        raise argparse.ArgumentTypeError(f"Invalid rate limit mode: {text}. Write off or execution_count")
    return text == "execution_count"


def resource_count(text: str) -> ResourceCount:
    """Read ``<name>:<count>[:<device>]``.

    Raises:
        ArgumentTypeError: the form is wrong.
    """
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2 or not all(_is_number(number) for number in numbers):
        raise argparse.ArgumentTypeError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got "
            f"{text}"
        )
    return name, int(numbers[1]) if len(numbers) == 2 else None, int(numbers[0])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def resource_limits(given: Iterable[ResourceCount], *, enabled: bool) -> Mapping[tuple[str, int | None], int] | None:
    """The count of each resource; None if the rate limiter is off."""
    return {(name, device): count for name, device, count in given} if enabled else None
