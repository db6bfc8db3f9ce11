"""The command line of ``pybackend serve``, and its conversion to settings."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pybackend import __version__
from pybackend.cli.command_parser import CommandParser, UsageError
from pybackend.cli.flag_rules import decided, warnings_of
from pybackend.cli.flags import FLAGS, GROUPS
from pybackend.cli.setting_sources import SettingSources, settings_in_force
from pybackend.errors import PybackendError
from pybackend.flag import add_groups
from pybackend.plugins import COMMANDS, flag_owners, require_owner
from pybackend.runner import Given, Serve
from pybackend.settings import EXIT_INTERRUPTED, Settings
from pybackend.spelling import closest

Fields = TypeVar("Fields")
Found = TypeVar("Found")


def _listed_commands() -> str:
    lines = []
    for group, commands in COMMANDS.items():
        lines += [f"{group}:", *(f"  {name:<7}  {command.text}" for name, command in commands.items()), ""]
    return "\n".join([*lines, "`pybackend COMMAND --help` explains a command.", ""])


def make_parser() -> tuple[argparse.ArgumentParser, CommandParser]:
    """The parser of the whole command line, and its subparser for ``serve``."""
    parser = CommandParser(
        prog="pybackend",
        usage="pybackend COMMAND ...",
        description="Serves models written for Triton's Python backend.",
        epilog=_listed_commands(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"pybackend {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    serve = commands.add_parser(
        "serve",
        prog="pybackend serve",
        usage="pybackend serve [--FLAG[=VALUE]]... [REPOSITORY]",
        description="Serves models over HTTP and gRPC.",
    )
    add_groups(serve, GROUPS)
    return parser, serve


class CommandLine(NamedTuple):
    """A command line for ``serve``."""

    given: argparse.Namespace
    sources: Sequence[Given]
    settings: Settings


def parse(arguments: Sequence[str]) -> CommandLine | None:
    """The settings of a command line for ``serve``; None if it names no command.

    Raises UsageError if a flag, a value or a command does not exist, and ServerError if the settings contradict each
    other.
    """
    if arguments and not arguments[0].startswith("-") and arguments[0] != "serve":
        similar = closest(arguments[0], [name for commands in COMMANDS.values() for name in commands])
        advice = (
            f"Did you mean `pybackend {similar}`?"
            if similar
            else "To serve models write `pybackend serve DIRECTORY`; `pybackend --help` lists the commands"
        )
        raise UsageError(f"Unexpected argument: {arguments[0]}. {advice}", make_parser()[0].format_usage())
    given, sources = _parsed(arguments)
    if given.command is None:
        return None
    settings = settings_of(given, sources, needs_repository=not given.print_config)
    return CommandLine(given, sources.settings, settings)


def parse_serve_flags(arguments: Sequence[str]) -> Settings:
    """The settings of the flags and arguments of ``pybackend serve``, of which the repository may be missing.

    Raises UsageError if a flag or a value does not exist, and ServerError if the settings contradict each other.
    """
    given, sources = _parsed(["serve", *arguments])
    return settings_of(given, sources, needs_repository=False)


def parse_with_serve_flags(parser: CommandParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, Settings]:
    """The flags of a command that examines a server, and the settings of the server's flags among them."""
    given, rest = parser.parse_known_args(list(arguments))
    logging.getLogger("pybackend").addHandler(logging.NullHandler())  # warnings become findings
    try:
        return given, parse_serve_flags(rest)
    except UsageError as error:
        raise UsageError(str(error), parser.format_usage()) from None


def _parsed(arguments: Sequence[str]) -> tuple[argparse.Namespace, SettingSources]:
    parser, serve = make_parser()
    sources = SettingSources(serve, FLAGS, os.environ)
    given, rest = parser.parse_known_args(list(arguments))
    if rest:
        require_owner(rest[0].partition("=")[0])
        serve.refuse(rest[0])
    return given if given.command is None else sources.complete(given, arguments), sources


def settings_of(given: argparse.Namespace, sources: SettingSources, *, needs_repository: bool) -> Settings:
    """The settings that the parsed flags of ``serve`` select.

    Raises ServerError if they contradict each other, or there is no repository.
    """
    values = vars(given)
    fields = decided(given, os.environ, needs_repository=needs_repository)
    for flag in FLAGS:
        if flag.to:
            fields[flag.to] = flag.then(values[flag.key]) if flag.then else values[flag.key]
    fields["warnings"] = (*sources.warnings, *warnings_of(given))
    fields["in_force"] = settings_in_force(sources.settings)
    settings = _with(Settings(repositories=()), fields)
    for owner in flag_owners():
        settings = owner.decide(settings, given, os.environ)
    return settings


def _with(settings: Fields, fields: Mapping[str, Any]) -> Fields:
    """Settings with other values in some fields, which are named by their paths."""
    changes: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        name, dot, rest = path.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            changes[name] = value
    for name, found in inner.items():
        changes[name] = _with(getattr(settings, name), found)
    return replace(settings, **changes)  # type: ignore[type-var]


def print_help() -> None:
    """Print the usage of the command."""
    make_parser()[0].print_help(sys.stdout)


def visited(serve: Serve, settings: Settings, visit: Callable[[str], Found]) -> Found:
    """The result of a function that gets the URL of a server, which runs for it.

    Raises KeyboardInterrupt if a signal has ended the server, and the function's PybackendError.
    """
    found: list[Found] = []
    errors: list[PybackendError] = []

    def visitor(url: str) -> int:
        try:
            found.append(visit(url))
        except PybackendError as error:
            errors.append(error)
        return 0

    if serve(settings, visitor) == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if errors:
        raise errors[0]
    return found[0]


SILENT = ("--log-warning=false", "--log-error=false")
"""For commands whose own error has the reason."""


def visited_settings(repository: Path, own: Sequence[str], given: Sequence[str]) -> Settings:
    """The settings of such a server; see :func:`visited_arguments`. Raises PybackendError if a flag is wrong."""
    return parse_serve_flags(visited_arguments(repository, own, given))


def visited_arguments(repository: Path, own: Sequence[str], given: Sequence[str]) -> list[str]:
    """The arguments of ``serve`` for such a server.

    ``own``: flags of the command. ``given``: flags of its user. They come last, so that they win.
    """
    return [
        str(repository),
        "--model-control-mode=explicit",
        "--http-address=127.0.0.1",
        "--http-port=0",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--log-info=false",
        *own,
        *given,
    ]
