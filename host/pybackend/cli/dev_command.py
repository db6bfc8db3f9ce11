"""``pybackend dev``: a server for the author of a model. It follows the files, and a broken one does not end it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pybackend.cli.command_parser import CommandParser
from pybackend.cli.options import add_serve_flags, settings_of
from pybackend.cli.places import with_single_models
from pybackend.cli.print_config import settings_text
from pybackend.cli.setting_sources import SettingSources
from pybackend.errors import ServerError
from pybackend.observability.log_settings import LogFormat
from pybackend.settings import ModelControlMode, Settings

SETTLE_S = 0.1
"""Editors write a file, or all files that have changed, within this time."""

ABANDONED_LIMIT_S = 3.0
"""After a change, the version before it is ended this soon after the client has left for which it executes."""

_LOCAL = "127.0.0.1"

_DEFAULTS = {
    "http_address": _LOCAL,
    "grpc_address": _LOCAL,
    "model_control_mode": ModelControlMode.POLL,
    "repository_poll_secs": 1,  # for file systems that give no notice of changes
    "exit_on_error": False,
    "exit_timeout_secs": 2,
    "log_format": LogFormat.SHORT,
}
"""The flags of ``serve`` whose defaults differ."""


def make_parser() -> CommandParser:
    """The parser of ``dev``'s arguments."""
    parser = CommandParser(
        prog="pybackend dev",
        usage="pybackend dev [--FLAG[=VALUE]]... [REPOSITORY]",
        description="Serves models to this machine while you write them. Saved files load by themselves: code, configurations, new "
        "models. If a change is broken, the version before it keeps serving. REPOSITORY is a directory of models, or the "
        "directory of one model [the current directory].",
        epilog="The flags are those of `pybackend serve`; some have other defaults.",
    )
    add_serve_flags(parser)
    for action in parser._actions:
        if action.dest in _DEFAULTS and action.help:
            action.default = _DEFAULTS[action.dest]
            action.help = re.sub(r"\[[^]]*\]$", f"[{_text(action.default)}]", action.help)
    return parser


def parse_dev(arguments: Sequence[str]) -> Settings | str:
    """The settings of the command line after ``dev``, as text if it wants them printed.

    Raises:
        UsageError: a flag or a value does not exist.
        ServerError: the settings contradict each other, or the command.
    """
    parser = make_parser()
    sources = SettingSources(parser, os.environ)
    given, rest = parser.parse_known_args(list(arguments))
    if rest:
        parser.refuse(rest[0])
    sources.complete(given, arguments)
    if given.print_config:
        return settings_text(sources.settings)
    if given.model_control_mode is not ModelControlMode.POLL or not given.repository_poll_secs:
        raise ServerError(
            "Error: `pybackend dev` follows its repository: leave out --model-control-mode and --repository-poll-secs=0, or use "
            "`pybackend serve`."
        )
    if given.repository is None and not given.model_repository:
        given.repository = Path()
    settings = with_single_models(settings_of(given, sources.warnings, needs_repository=True))
    return replace(settings, repository_settle_s=SETTLE_S, abandoned_limit_s=ABANDONED_LIMIT_S)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
