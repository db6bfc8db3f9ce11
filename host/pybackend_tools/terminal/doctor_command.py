"""``pybackend doctor``: checks whether a server would work on this machine, and advises on everything missing."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from pybackend.cli.command_line import parse_with_serve_flags
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.output import counted, wrapped
from pybackend.settings import Settings
from pybackend_tools.doctor.finding import Finding, Status
from pybackend_tools.doctor.server_checks import NOT_LOADED, examine

_MOST_NAMED = 4


def make_parser() -> CommandParser:
    """The command line behind ``pybackend doctor``, without the flags of ``serve``."""
    parser = CommandParser(
        prog="pybackend doctor",
        usage="pybackend doctor [--json] [--FLAG[=VALUE]]... [REPOSITORY]",
        description="Checks whether this machine can run a server, and with a REPOSITORY, whether that server would start: its "
        "ports, and of each model the configuration, the environment and the permissions of its files. No code of a model "
        "runs. Exits with 1 if a server would fail.",
        epilog="The flags are those of `pybackend serve`: give the same ones.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


def run_doctor(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    given, settings = parse_with_serve_flags(make_parser(), arguments)
    findings = asyncio.run(examine(settings))
    failed = [finding.layer for finding in findings if finding.status is Status.FAIL]
    if given.json:
        text = json.dumps([asdict(finding) for finding in findings], indent=2)
    else:
        text = "\n".join([*_rows(findings), _verdict(settings, failed, findings)])
    sys.stdout.write(f"{text}\n")
    return int(bool(failed))


def _rows(findings: Sequence[Finding]) -> list[str]:
    width = max(len(finding.layer) for finding in findings)
    indent = " " * (len("warn  ") + width + 2)
    lines, given = [], set()
    for finding in findings:
        head = f"{finding.status.value:<4}  {finding.layer:<{width}}  "
        lines += wrapped(finding.found, head, indent)
        if finding.advice:
            lines += wrapped("(see above)" if finding.advice in given else finding.advice, indent, indent)
            given.add(finding.advice)
    return lines


def _verdict(settings: Settings, failed: Sequence[str], findings: Sequence[Finding]) -> str:
    if failed:
        more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
        return f"serve would fail: {', '.join(failed[:_MOST_NAMED])}{more}"
    if not settings.place_names:
        return "serve would work on this machine; `pybackend doctor REPOSITORY` checks models and ports too"
    models = [finding for finding in findings if finding.layer.startswith("model '")]
    count = sum(finding.found != NOT_LOADED for finding in models)
    http = settings.http
    place = f" on {http.address}:{http.port or '(a free port)'}" if http.enabled else ""
    others = f"; {counted(len(models) - count, 'model')} would not be loaded" if count < len(models) else ""
    return f"serve would work: {counted(count, 'model')}{place}{others}"
