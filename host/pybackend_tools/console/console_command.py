"""``pybackend console``: pages for the browser about a running server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pybackend.cli.command_parser import CommandParser
from pybackend.process.diagnostics_key import find_headers
from pybackend_client.connection import Connection
from pybackend_tools.connection_flags import access_of, add_connection_flags, add_url, metrics_place
from pybackend_tools.console.program import print_link, run
from pybackend_tools.console.settings import ADDRESS, PORT, ConsoleSettings

_TIMEOUT_S = 10.0


def make_parser() -> CommandParser:
    """The parser of ``console``'s arguments."""
    parser = CommandParser(
        prog="pybackend console",
        usage="pybackend console [--FLAG[=VALUE]]...",
        description="Shows a running server in the browser: its models, figures and logs, and a form to try each model. Open the link that "
        f"it prints. The pages are on {ADDRESS}, for this machine only. Ctrl-C ends it.",
    )
    add_url(parser.add_argument)
    add = parser.add_argument
    add(
        "--port",
        type=int,
        metavar="PORT",
        help=f"port of the pages; 0 takes a free one [{PORT}, or a free one if it is taken]",
    )
    add(
        "--public-url",
        default="",
        metavar="URL",
        help="the pages' address behind a proxy, such as https://ops.example.org/console",
    )
    add(
        "--metrics-url",
        metavar="URL",
        help="the server's metrics; none does without [where the server says, else port 8002 of the same host]",
    )
    add(
        "--grpc-url",
        metavar="HOST:PORT",
        help="the server's port for gRPC, for the requests that are shown [where the server says, else port 8001 of the same host]",
    )
    add_connection_flags(parser, _TIMEOUT_S)
    return parser


def run_console(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    given = parser.parsed(arguments)
    if given.port is not None and not 0 <= given.port <= 65_535:
        parser.refuse_with('Bad option: "--port". Write a number from 0 to 65535')
    access = replace(access_of(given, parser), find_headers=find_headers)
    url = Connection(given.url, given.timeout, access=access).url  # refuses what is no address
    metrics = None if given.metrics_url is None else metrics_place(given.metrics_url)
    metrics = "" if metrics == "none" else metrics
    settings = ConsoleSettings(url, metrics, given.grpc_url or "", given.timeout, access, given.port, given.public_url)
    run(settings, print_link)
