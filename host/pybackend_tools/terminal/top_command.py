"""``pybackend top``: a live table of a running server's models."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from pybackend.cli.command_parser import CommandParser
from pybackend.cli.output import is_terminal, print_text, table_lines, terminal_size
from pybackend.errors import PybackendError
from pybackend.observability.log_lines import one_line
from pybackend.process.diagnostics_key import find_headers
from pybackend_client.connection import Connection
from pybackend_client.figures import (
    FrontEndRow,
    Row,
    Sample,
    Source,
    advice_between,
    front_ends_between,
    rows_between,
)
from pybackend_tools.connection_flags import (
    access_of,
    add_connection_flags,
    add_url,
    metrics_place,
    told_ports,
)

_TIMEOUT_S = 10.0
_INTERVAL_S = 2.0

_HEADINGS = (
    "MODEL", "VERSION", "STATE", "INSTANCES", "REQ/S", "FAIL/S", "WAITING", "RUNNING", "OLDEST s", "QUEUE ms", "EXECUTE ms", "p50 ms", "p99 ms",
    "FAILED", "CPU", "RSS MB",
)  # fmt: skip
_LEFT_ALIGNED = 3
_FRONT_END_HEADINGS = ("FRONT END", "CONNECTIONS", "RESTARTS", "CPU", "RSS MB")

_ENTER, _LEAVE, _FRAME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H\x1b[2J"
"""The terminal's second screen without a cursor, the way back, and an empty screen."""


def make_parser() -> CommandParser:
    """The parser of ``top``'s arguments."""
    parser = CommandParser(
        prog="pybackend top",
        usage="pybackend top [--FLAG[=VALUE]]...",
        description="Shows the models of a running server: requests and failures a second, waiting requests, times. Ctrl-C ends it.",
        epilog="Instances, waiting requests, executions, quantiles, CPU and memory come from the metrics; quantiles are those of "
        "the last 512 executions. exit status: 0, or 1 if no server answers at first",
    )
    add_url(parser.add_argument)
    add = parser.add_argument
    add(
        "--metrics-url",
        metavar="URL",
        help="the server's metrics; none does without [where the server says, else port 8002 of the same host]",
    )
    add(
        "--interval",
        type=float,
        default=_INTERVAL_S,
        metavar="SECONDS",
        help=f"time between two looks [{_INTERVAL_S:g}]",
    )
    add("--once", action="store_true", help="print one table, after one interval")
    add("--json", action="store_true", help="print one JSON object, after one interval")
    add_connection_flags(parser, _TIMEOUT_S)
    return parser


def run_top(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    given = parser.parsed(arguments)
    if not 0 < given.interval < 86_400:
        parser.refuse_with('Bad option: "--interval". Write a number of seconds above 0')
    server = Connection(given.url, given.timeout, access=replace(access_of(given, parser), find_headers=find_headers))
    source = Source(server, _metrics_connection(given, parser, server))
    first = source.sample()
    if given.once or given.json:
        time.sleep(given.interval)
        second = source.sample()
        print_text(_document(first, second) if given.json else "\n".join(_table(first, second, source, None)))
        return 0
    with suppress(KeyboardInterrupt):
        _show(source, first, given.interval)
    return 0


def _metrics_connection(given: argparse.Namespace, parser: CommandParser, server: Connection) -> Connection | None:
    if given.metrics_url is None:
        address = told_ports(server)["metrics"]
        url = f"http://{address}" if address else "none"
    else:
        url = metrics_place(given.metrics_url)
    if url == "none":
        return None
    advice = "--metrics-url=URL names the port for metrics, and --metrics-url=none does without"
    return Connection(url, given.timeout, advice, access_of(given, parser), "--metrics-url")


def _show(source: Source, before: Sample, interval_s: float) -> None:
    """Show tables until interrupted. A server that is away for a while may come back."""
    live = is_terminal()
    if live:
        sys.stdout.write(_ENTER)
    try:
        lines = [f"{source.server.url}: looking for {interval_s:g} s ..."]
        while True:
            if live:
                sys.stdout.write(_FRAME + "\n".join(lines))
                sys.stdout.flush()
            time.sleep(interval_s)
            try:
                after = source.sample()
            except PybackendError as error:
                lines = [one_line(str(error))]
            else:
                lines = _table(before, after, source, terminal_size() if live else None)
                before = after
            if not live:
                print_text("\n".join([*lines, ""]))
    finally:
        if live:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()


def _table(before: Sample, after: Sample, source: Source, size: tuple[int, int] | None) -> list[str]:
    """Lines of a table, which fill no more than the columns and lines of a terminal."""
    rows, front_ends = rows_between(before, after), front_ends_between(before, after)
    ready = sum(row.state == "READY" for row in rows)
    total, failed = (sum(getattr(row, name) or 0 for row in rows) for name in ("requests_per_s", "failures_per_s"))
    heads = [f"{source.server.url}: {ready} of {len(rows)} ready, {total:.1f} requests/s, {failed:.1f} failures/s"]
    if source.trouble:
        heads.append(f"no metrics: {one_line(source.trouble)}")
    heads += [one_line(str(advice)) for advice in advice_between(before, after)]
    if front_ends:
        heads += [*table_lines([_FRONT_END_HEADINGS, *map(_front_end_cells, front_ends)], left=1), ""]
    lines = table_lines([_HEADINGS, *map(_cells, rows)], left=_LEFT_ALIGNED)
    if size is None:
        return [*heads, *lines]
    columns, height = size
    most_lines = max(1, height - len(heads) - 1)
    if len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], f"... and {len(lines) - most_lines + 1} more"]
    return [line[:columns] for line in (*heads, *lines)]


def _cells(row: Row) -> tuple[str, ...]:
    instances = "-" if row.instances is None else f"{row.instances_ready}/{row.instances}"
    return (
        one_line(row.model),
        row.version or "-",
        row.state or "-",
        instances,
        *(_number(value, 1) for value in (row.requests_per_s, row.failures_per_s)),
        _number(row.waiting, 0),
        _number(row.running, 0),
        _number(row.oldest_s, 0) if row.running else "-",
        *(_number(value, 2) for value in (row.queue_ms, row.execute_ms, row.execute_p50_ms, row.execute_p99_ms)),
        _number(row.failures, 0),
        _number(row.cpu_cores, 2),
        _number(None if row.resident_bytes is None else row.resident_bytes / 1e6, 0),
    )


def _front_end_cells(row: FrontEndRow) -> tuple[str, ...]:
    resident_mb = None if row.resident_bytes is None else row.resident_bytes / 1e6
    counts = (str(row.connections), str(row.restarts))
    return row.front_end, *counts, _number(row.cpu_cores, 2), _number(resident_mb, 0)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _document(first: Sample, second: Sample) -> str:
    document = {
        "interval_s": second.taken_s - first.taken_s,
        "models": [asdict(row) for row in rows_between(first, second)],
        "front_ends": [asdict(row) for row in front_ends_between(first, second)],
        "groupable": [{**asdict(each), "saved_cores": each.saved_cores} for each in advice_between(first, second)],
    }
    return json.dumps(document, ensure_ascii=False)
