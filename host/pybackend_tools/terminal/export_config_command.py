"""``pybackend export-config``: prints the complete configuration of a model as config.pbtxt."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pybackend.cli.command_line import SILENT, visited, visited_settings
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.flag_values import absolute
from pybackend.cli.output import divided, print_text
from pybackend.cli.repository_arguments import with_single_models
from pybackend.errors import ServerError
from pybackend.modelconfig.normalisation import minimal_document
from pybackend.modelconfig.parser import format_config_text, parse_config_json
from pybackend.repository.layout import is_model_directory, scan_repositories
from pybackend.runner import Serve
from pybackend_client.connection import Connection, model_path
from pybackend_client.trial import Trial
from pybackend_tools.connection_flags import add_connection_flags, connection_of

_DEFAULT_TIMEOUT_S = 600.0
_MOST_NAMED = 8


def make_parser() -> CommandParser:
    """The parser of ``export-config``'s arguments."""
    parser = CommandParser(
        prog="pybackend export-config",
        usage="pybackend export-config MODEL_OR_REPOSITORY[/NAME] [--FLAG[=VALUE]]... [-- SERVE_FLAG...]",
        description="Prints the configuration of a model as config.pbtxt, with everything that auto-complete found. The model is "
        "started once; with --url a running server answers.",
        epilog="exit status: 0 if the configuration was printed or written, 1 if not",
    )
    add = parser.add_argument
    add("model", metavar="MODEL_OR_REPOSITORY[/NAME]", help="the model's directory; with --url, the model's name")
    add("--minimal", action="store_true", help="leave out the name and everything that the server fills in by itself")
    add("--output", type=Path, metavar="FILE", help="write into this file [standard output]")
    add("--url", help="http://HOST:PORT, https://HOST:PORT or unix:PATH of a running server that has the model")
    add("--model-version", default="", metavar="N", help="with --url, the model's version [the server chooses]")
    add_connection_flags(parser, _DEFAULT_TIMEOUT_S)
    return parser


def run_export_config(arguments: Sequence[str], serve: Serve) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    own, flags = divided(arguments)
    given = parser.parsed(own)
    if given.url is not None:
        if flags:
            parser.refuse_with("Flags after -- are for `pybackend serve`: leave out --url")
        document = connection_of(given, parser).get(f"{model_path(given.model, given.model_version)}/config")
    else:
        document = _of_directory(Path(given.model), flags, given.timeout, serve)
    complete = parse_config_json(document, f"the server's configuration of model '{given.model}'")
    text = format_config_text(minimal_document(complete) if given.minimal else complete)
    if given.output is None:
        print_text(text.rstrip("\n"))
        return 0
    try:
        given.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ServerError(f"cannot write {given.output}: {error.strerror}") from None
    return 0


def _of_directory(directory: Path, flags: Sequence[str], timeout_s: float, serve: Serve) -> Mapping[str, Any]:
    """The configuration of a model that is started for it.

    Raises PybackendError if it is not one model, or it does not load, and KeyboardInterrupt if a signal has ended the
    server.
    """
    model = _one_model(directory)

    def visit(url: str) -> Mapping[str, Any]:
        trial = Trial(Connection(url, timeout_s), model.name)
        trial.load()
        return trial.configuration()

    return visited(serve, with_single_models(visited_settings(model, SILENT, flags)), visit)


def _one_model(directory: Path) -> Path:
    """The directory of the model that is meant. Raises ServerError if there is none, or more than one."""
    directory = absolute(directory)
    if is_model_directory(directory):
        return directory
    if not os.path.lexists(directory):
        raise ServerError(
            f"{directory} does not exist: name a model's directory, or with --url=http://localhost:8000 a model of a running server"
        )
    models = scan_repositories([directory]).models
    if len(models) != 1:
        names = ", ".join(list(models)[:_MOST_NAMED])
        found = (
            f"holds {len(models)} models, {names}: name one, {directory / next(iter(models))}"
            if models
            else "holds no model"
        )
        raise ServerError(f"{directory} {found}")
    return next(iter(models.values()))
