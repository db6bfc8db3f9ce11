"""``pybackend dev``: a server for the author of a model. It follows the files, and a broken one does not end it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pybackend.cli.command_line import settings_of
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.flags import GROUPS
from pybackend.cli.output import has_terminal
from pybackend.cli.repository_arguments import may_be_bare, with_single_models
from pybackend.cli.setting_sources import SettingSources, settings_text
from pybackend.environment.cache import default_cache_directory
from pybackend.errors import SettingError
from pybackend.flag import add_groups
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.parser import format_config_text
from pybackend.observability.log_lines import LogFormat
from pybackend.runner import Serve
from pybackend.sandbox.runtime_directory import RuntimeDirectory, runtime_places
from pybackend.settings import ModelControlMode, Settings
from pybackend_tools.console.extra import has_console
from pybackend_tools.importing.detection import bare_model, detect
from pybackend_tools.importing.entry import StagedEntry, place_of
from pybackend_tools.importing.import_command import check_trust, derived_name
from pybackend_tools.importing.kinds import FoundModel
from pybackend_tools.importing.run import backed_by, first_configuration, lay_out

SETTLE_S = 0.1
"""Editors write a file, or all files that have changed, within this time."""

ABANDONED_LIMIT_S = 3.0
"""After a change, the version before it is ended this soon after the client has left for which it executes."""

_LOCAL = "127.0.0.1"
_TRUST = "--trust-pickle"

_DEFAULTS = {
    "http_address": _LOCAL,
    "grpc_address": _LOCAL,
    "model_control_mode": ModelControlMode.POLL,
    "repository_poll_secs": 1,  # for file systems that give no notice of changes
    "exit_on_error": False,
    "validate_outputs": True,
    "exit_timeout_secs": 2,
    "exit_keepalive_secs": 0,
    "log_format": LogFormat.SHORT,
    "console": has_console(),
}
"""The flags of ``serve`` whose defaults differ."""

_GROUPS = tuple(
    replace(
        group,
        flags=tuple(
            replace(flag, default=_DEFAULTS[flag.key]) if flag.key in _DEFAULTS else flag for flag in group.flags
        ),
    )
    for group in GROUPS
)


def make_parser() -> CommandParser:
    """The parser of ``dev``'s arguments."""
    parser = CommandParser(
        prog="pybackend dev",
        usage="pybackend dev [--FLAG[=VALUE]]... [REPOSITORY]",
        description="Serves models to this machine while you write them. Saved files load by themselves: code, configurations, new "
        "models. If a change is broken, the version before it keeps serving. REPOSITORY is a directory of models, the directory of one "
        "model, or the file or directory of a framework, such as iris.onnx, which is served from a copy [the current directory].",
        epilog="The flags are those of `pybackend serve`; some have other defaults.",
    )
    parser.add_argument(
        _TRUST, action="store_true", help="read a pickle, which runs any code that its writer put into it"
    )
    add_groups(parser, _GROUPS)
    return parser


def run_dev(arguments: Sequence[str], serve: Serve) -> int:
    """Run the command and return the exit status."""
    # Not where everybody's temporary files lie: there, every model may write.
    copies = RuntimeDirectory(runtime_places(default_cache_directory(), "copies"))
    try:
        settings = parse_dev(arguments, partial(copies.make, 0o755))  # the model may run as another user
        if isinstance(settings, str):
            sys.stdout.write(settings)
            return 0
        return serve(settings, None)
    finally:
        copies.close()


def parse_dev(arguments: Sequence[str], make_scratch: Callable[[], Path]) -> Settings | str:
    """The settings of the command line after ``dev``, as text if it wants them printed.

    ``make_scratch`` makes an empty directory, for a copy of a framework's file or directory. Raises UsageError if a
    flag or a value does not exist, and ServerError if the settings contradict each other, or the command.
    """
    parser = make_parser()
    sources = SettingSources(parser, [flag for group in _GROUPS for flag in group.flags], os.environ)
    given = parser.parsed(arguments)
    sources.complete(given, arguments)
    if given.print_config:
        return settings_text(sources.settings)
    if given.model_control_mode is not ModelControlMode.POLL or not given.repository_poll_secs:
        raise SettingError(
            "`pybackend dev` follows its repository: leave out --model-control-mode and --repository-poll-secs=0, or use "
            "`pybackend serve`."
        )
    if given.repository is None and not given.model_repository:
        given.repository = Path()
    settings = settings_of(given, sources, needs_repository=True)
    bare = {path: found for path in settings.repositories if may_be_bare(path) and (found := _found(path))}
    copies = {path: _copied(found, make_scratch(), parser, trusts=given.trust_pickle) for path, found in bare.items()}
    repositories = tuple(dict.fromkeys(copies.get(path, path) for path in settings.repositories))
    settings = with_single_models(replace(settings, repositories=repositories))
    return replace(
        settings,
        models=replace(settings.models, settle_s=SETTLE_S, abandoned_limit_s=ABANDONED_LIMIT_S),
        lends_terminal=has_terminal(),
        warns_of_bytes=True,
    )


def _found(path: Path) -> FoundModel | None:
    """The framework's model there, None for none.

    An unknown file has no other meaning, and is a ServerError with the reason.
    """
    return detect(path) if path.is_file() else bare_model(path)


def _copied(found: FoundModel, scratch: Path, parser: CommandParser, *, trusts: bool) -> Path:
    check_trust(found, trusts=trusts)
    place = place_of(scratch / "models", derived_name(found, parser), None, force=False)
    with StagedEntry(place) as entry:
        lay_out(entry, found)
        entry.write(CONFIG_FILENAME, format_config_text(first_configuration(backed_by(found, ""), {})))
        entry.commit()
    sys.stdout.write(
        f"serving a copy of {found.source}, {found.kind.title}, as model '{place.name}'; `pybackend import` makes a lasting entry\n"
    )
    sys.stdout.flush()
    return place.repository
