"""The flags of commands that search: their goal, their measurements, and values with units."""

from __future__ import annotations

import argparse
import re
from typing import Any

from pybackend.cli.command_parser import CommandParser
from pybackend_tools.analyzer.goal import Goal

_UNITS = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3}
_SIZES = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "MIB": 2**20, "GIB": 2**30}
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def _with_unit(units: dict[str, float], example: str, least: float = 1e-6) -> Any:
    def read(text: str) -> float:
        found = _WITH_UNIT.fullmatch(text.strip())
        factor = units.get(found[2] if "ms" in units else found[2].upper()) if found else None
        if found is None or factor is None or float(found[1]) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is no value such as {example}")
        return float(found[1]) * factor

    return read


def number(text: str) -> float:
    """A finite number that is not negative."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number such as 0.5")
    return found


_time_ms, _size_bytes = _with_unit(_UNITS, "20ms"), _with_unit(_SIZES, "2GB")
_delay_ms = _with_unit(_UNITS, "0 or 500us", least=0)


def numbers(least: int) -> Any:
    """A list such as ``1,2,4``, or a range such as ``1..8``, of which the doubles are taken."""

    def read(text: str) -> list[int]:
        try:
            if ".." in text:
                first, last = (int(part) for part in text.split("..", 1))
                numbers = [] if last < first else [first]
                while numbers and numbers[-1] < last:
                    numbers.append(min(last, max(1, numbers[-1] * 2)))
            else:
                numbers = sorted({int(part) for part in text.split(",")})
        except ValueError:
            numbers = []
        if not numbers or numbers[0] < least:
            raise argparse.ArgumentTypeError(f"'{text}' is no list such as 1,2,4 and no range such as 1..8")
        return numbers

    return read


def delays_us(text: str) -> list[int]:
    """Delays such as ``0,500us,2ms``."""
    return sorted({round(_delay_ms(part) * 1000) for part in text.split(",")})


def add_goal_flags(parser: CommandParser, objective: str) -> None:
    """The flags of the goal, and of the measurements that decide. ``objective``: the default."""
    add = parser.add_argument
    add(
        "--objective",
        choices=("throughput", "latency", "median", "cost"),
        default=objective,
        help="the most inferences per second, the lowest 99th percentile or median of times, or the most inferences per second of "
        f"processor time [{objective}]",
    )
    add("--p99", type=_time_ms, default=float("inf"), metavar="TIME", help="limit of the 99th percentile, such as 20ms")
    add(
        "--min-throughput",
        type=number,
        default=0.0,
        metavar="N",
        help="at least so many inferences per second, of all models together",
    )
    add(
        "--max-memory",
        type=_size_bytes,
        default=float("inf"),
        metavar="SIZE",
        help="limit of the memory of all models' processes, such as 2GB",
    )
    add(
        "--window",
        type=number,
        default=1.0,
        metavar="SECONDS",
        help="length of a measurement's parts, of which three must agree [1]",
    )


def goal_of(given: argparse.Namespace) -> Goal:
    """The goal that the flags of :func:`add_goal_flags` name."""
    return Goal(given.objective, given.p99, given.min_throughput, given.max_memory)
