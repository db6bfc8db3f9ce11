"""``--backend-config``: what Triton's Python backend can be told on the command line.

Values are checked, so that a mistake shows. They have no effect: memory grows as it is needed here, without named
regions, message queues or a pool of threads that could be too small.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

_NUMBERS: Mapping[str, tuple[int, str] | None] = {
    # The reference's text names a bound that is not the one it applies.
    "shm-default-byte-size": (1024 * 1024, "can't be smaller than 4 MiBs"),
    "shm-growth-byte-size": (1, "can't be smaller than or equal to zero."),
    "shm_message_queue_size": None,
    "thread-pool-size": (1, "can't be less than 1."),
    "stub-timeout-seconds": (1, "can't be smaller than or equal to zero."),
}
"""Settings that are numbers: the least one, if there is one, and what is said to smaller ones. All others are texts."""

_BACKENDS = ("", "python")
"""Whose settings are checked; models of Python-based backends follow those of Python too."""


def backend_setting(text: str) -> str:
    """Check ``<backend>,<setting>=<value>``, or ``<setting>=<value>`` for all backends, and return it.

    Raises:
        ArgumentTypeError: it has another form, or a value that cannot be.
    """
    subject, _, value = text.partition("=")
    backend, comma, name = subject.rpartition(",")
    if comma and not backend:
        raise argparse.ArgumentTypeError(
            "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
            f"<setting>=<value>. Got {text}"
        )
    if not name or not value:
        raise argparse.ArgumentTypeError(
            f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}"
        )
    if backend in _BACKENDS and name in _NUMBERS:
        _check_number(name, value)
    return text


def _check_number(name: str, value: str) -> None:
    try:
        number = int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} must be a whole number. Got {value}") from None
    bound = _NUMBERS[name]
    if bound is not None and number < bound[0]:
        separator = "" if bound[1].endswith(".") else "."
        raise argparse.ArgumentTypeError(f"{name} {bound[1]}{separator} Got {value}, expected {bound[0]} or more")
