"""``pybackend load``, ``unload`` and ``status``: control the models of a running server."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pybackend.cli.command_parser import CommandParser, UsageError
from pybackend.cli.connection_flags import add_connection_flags, add_url, connection_of
from pybackend.cli.terminal import is_terminal, print_text, table_lines, terminal_size
from pybackend.errors import ServerError
from pybackend.modelconfig.full_name import SEPARATOR
from pybackend.observability.log_lines import one_line
from pybackend.spelling import closest

_DEFAULT_TIMEOUT_S = 600.0
_ADVICE = (
    "Start a server with `pybackend serve DIRECTORY --model-control-mode=explicit`, or name another one with --url"
)
_HEADINGS = ("MODEL", "VERSION", "STATE", "REASON")
_NAMESPACE = "NAMESPACE"


def run_load(arguments: Sequence[str]) -> int:
    """Run ``pybackend load`` and return the exit status."""
    parser = control_parser(
        "load", "MODEL [--FLAG[=VALUE]]...", "Loads a model, or brings it up to date, and waits for it."
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="JSON to use instead of config.pbtxt until the next load"
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="PATH=FILE",
        help="a file of the model, such as 1/model.py=candidate.py; needs --config, and no other files are used; may be repeated",
    )
    given = parsed(parser, arguments)
    parameters: dict[str, str] = {}
    if given.config is not None:
        parameters["config"] = _read(given.config).decode("utf-8", "replace")
    for text in given.file:
        path, equals, file = text.partition("=")
        if not equals or not path:
            raise UsageError(f'Bad option: "--file". Got {text}, expected PATH=FILE', parser.format_usage())
        parameters[f"file:{path}"] = base64.b64encode(_read(Path(file))).decode()
    _control(given, "load", parameters)
    return _print_rows(given, _rows(given, given.model))


def run_unload(arguments: Sequence[str]) -> int:
    """Run ``pybackend unload`` and return the exit status."""
    parser = control_parser(
        "unload", "MODEL [--FLAG[=VALUE]]...", "Begins to unload a model: it answers the requests it has."
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument(
        "--unload-dependents", action="store_true", help="also unload parts that only this ensemble needs"
    )
    given = parsed(parser, arguments)
    _control(given, "unload", {"unload_dependents": given.unload_dependents})
    return _print_rows(given, _rows(given, given.model))


def run_status(arguments: Sequence[str]) -> int:
    """Run ``pybackend status`` and return the exit status."""
    parser = control_parser(
        "status", "[MODEL] [--FLAG[=VALUE]]...", "Lists the models of a running server, and their states."
    )
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="only this model")
    parser.add_argument("--ready", action="store_true", help="only ready versions")
    given = parsed(parser, arguments)
    rows = _rows(given, given.model, only_ready=given.ready)
    if given.model and not rows:
        raise _absent(given)
    return _print_rows(given, rows)


def _absent(given: argparse.Namespace) -> ServerError:
    """The error for a model without a row."""
    names = [row["name"] for row in _rows(given, "")]
    if given.model in names:
        return ServerError(f"no version of model '{given.model}' is ready: `pybackend status {given.model}` says why")
    near = closest(given.model, names)
    advice = f"did you mean '{near}'?" if near else "`pybackend status` lists its models"
    return ServerError(f"the server knows no model '{given.model}': {advice}")


def control_parser(command: str, usage: str, description: str) -> CommandParser:
    """A parser with the flags that all commands for a running server share."""
    parser = CommandParser(
        prog=f"pybackend {command}",
        usage=f"pybackend {command} {usage}",
        description=description,
        epilog="exit status: 0 if the server did as requested, 1 if not",
    )
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_connection_flags(parser, _DEFAULT_TIMEOUT_S)
    return parser


def parsed(parser: CommandParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError if the command line is wrong."""
    given, rest = parser.parse_known_args(list(arguments))
    if rest:
        parser.refuse(rest[0])
    given.connection = connection_of(given, parser, _ADVICE)
    return given


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ServerError(f"cannot read {path}: {error.strerror}") from None


def _control(given: argparse.Namespace, action: str, parameters: dict[str, Any]) -> None:
    path = f"/v2/repository/models/{quote(given.model, safe='')}/{action}"
    body = json.dumps({"parameters": parameters}).encode()
    given.connection.post(path, body, {"Content-Type": "application/json"})


def _rows(given: argparse.Namespace, model: str, *, only_ready: bool = False) -> list[dict[str, str]]:
    body = json.dumps({"ready": only_ready}).encode()
    reply = given.connection.post("/v2/repository/index", body, {})
    rows = json.loads(reply.body)
    return [row for row in rows if model in {"", row["name"]} or _is_full_name(model, row)]


def _is_full_name(text: str, row: dict[str, str]) -> bool:
    """True if a text is the full name of the model in a row, perhaps with a part of the namespace's path only."""
    head, _, name = text.rpartition(SEPARATOR)
    namespace = row.get("namespace", "")
    return bool(head) and name == row["name"] and (head == namespace or head in namespace.split("/"))


def _print_rows(given: argparse.Namespace, rows: list[dict[str, str]]) -> int:
    if given.json:
        print_text(json.dumps(rows, ensure_ascii=False))
        return 0
    if not rows:
        print_text("no models")
        return 0
    headings = (*_HEADINGS, _NAMESPACE) if any("namespace" in row for row in rows) else _HEADINGS
    columns = [heading.lower().replace("model", "name") for heading in headings]
    cells = [headings, *(tuple(_first_line(row.get(column, "")) for column in columns) for row in rows)]
    lines = table_lines(cells, left=len(headings))
    width = terminal_size()[0] if is_terminal() else None
    print_text("\n".join(line if width is None or len(line) <= width else f"{line[: width - 3]}..." for line in lines))
    return 0


def _first_line(text: str) -> str:
    return one_line(text.strip().partition("\n")[0]) or "-"
