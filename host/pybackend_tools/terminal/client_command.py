"""``pybackend client``: writes a typed client for one model."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pybackend.cli.command_parser import CommandParser
from pybackend.cli.output import print_error
from pybackend.errors import PybackendError, ServerError
from pybackend_client.typed_client import typed_client
from pybackend_tools.connection_flags import add_connection_flags, add_url, connection_of

_DEFAULT_TIMEOUT_S = 60.0


def make_parser() -> CommandParser:
    """The parser of ``client``'s arguments."""
    parser = CommandParser(
        prog="pybackend client",
        usage="pybackend client [--FLAG[=VALUE]]... MODEL",
        description="Writes a Python module that calls one model by pybackend_client, with the names and types of its tensors.",
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the module there [standard output]")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    add_url(parser.add_argument)
    add_connection_flags(parser, _DEFAULT_TIMEOUT_S)
    return parser


def run_client(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    try:
        text = typed_client(connection_of(given, parser), given.model)
        if given.out is None:
            sys.stdout.write(text)
        else:
            _write(given.out, text, replaces=given.force)
    except PybackendError as error:
        print_error(f"error: {error}")
        return 1
    return 0


def _write(path: Path, text: str, *, replaces: bool) -> None:
    try:
        with path.open("w" if replaces else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ServerError(f"{path} exists: --force replaces it") from None
    except OSError as error:
        raise ServerError(f"cannot write {path}: {error.strerror}") from None
