"""``pybackend doctor``: checks whether this machine has what a server needs, and advises on everything missing."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from pybackend.cli.options import CommandParser
from pybackend.doctor.examination import examine
from pybackend.doctor.finding import Finding, Status
from pybackend.environment.cache import default_cache_directory

_INDENT = " " * 6
_WIDTH = 110


def make_parser() -> argparse.ArgumentParser:
    """The command line behind ``pybackend doctor``."""
    parser = CommandParser(
        prog="pybackend doctor",
        description="Checks whether this machine can run a server. Exits with 1 if a requirement is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--environment-cache-directory",
        type=Path,
        default=None,
        metavar="DIR",
        help="the environment cache, as configured for the server",
    )
    return parser


def run_doctor(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status.

    Raises:
        UsageError: the command line is wrong.
    """
    given = make_parser().parse_args(list(arguments))
    cache = (given.environment_cache_directory or default_cache_directory()).absolute()
    findings = asyncio.run(examine(cache))
    if given.json:
        text = json.dumps([finding.to_document() for finding in findings], indent=2)
    else:
        text = "\n".join(_row(finding) for finding in findings)
    sys.stdout.write(f"{text}\n")
    return int(any(finding.status is Status.FAIL for finding in findings))


def _row(finding: Finding) -> str:
    lines = [f"{finding.status.value:<5} {finding.layer}: {finding.found}"]
    if finding.advice:
        lines += textwrap.wrap(finding.advice, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)
