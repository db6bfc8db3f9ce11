"""The commands. Imports are ordered by cost: processes of models start before the web stack is imported."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pybackend.cli.command_line import CommandLine, parse, print_help
from pybackend.cli.command_parser import UsageError
from pybackend.cli.output import print_error
from pybackend.cli.repository_arguments import refuse_bare_models
from pybackend.cli.setting_sources import settings_text
from pybackend.errors import PybackendError, ServerError, SettingError
from pybackend.plugins import COMMANDS, RUNNERS
from pybackend.settings import Settings

if TYPE_CHECKING:
    from pybackend.process.launcher import StubLauncher
    from pybackend.repository.layout import RepositoryScan
    from pybackend.repository.remote import RemoteRepositories

_COMMANDS = {name: command for commands in COMMANDS.values() for name, command in commands.items()}


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name and return the exit status."""
    try:
        name = arguments[0] if arguments else ""
        command = _COMMANDS.get(name)
        if command is not None and command.run is not None:
            return command.run.load()(arguments[1:])
        if command is not None and command.run_with is not None:
            return command.run_with.load()(arguments[1:], serve)
        if name == "version":
            arguments = ["--version"]
        line = parse(arguments)
        if line is None:
            print_help()
            return 1
        return runnable(line)()
    except UsageError as error:
        print_error(f"{error.usage}{error}")
    except PybackendError as error:
        print_error(f"{error}" if isinstance(error, SettingError) else f"error: {error}")
    except KeyboardInterrupt:  # the server has no handler yet, and nothing is running that needs an orderly end
        return 128 + signal.SIGINT
    return 1


def runnable(line: CommandLine) -> Callable[[], int]:
    """The function that does what a command line for ``serve`` asks for."""
    given, sources, settings = line
    if given.print_config:
        for warning in settings.warnings:
            print_error(f"warning: {warning}")
        return partial(_print, settings_text(sources))
    if given.on:
        return RUNNERS[given.on].load().prepare(given, sources, settings)
    for flag in [setting.flag for setting in sources if setting.texts is not None]:
        runner = next((name for name, row in RUNNERS.items() if flag.name in row.flags), None)
        if runner and vars(given)[flag.key] != flag.usual_value:
            raise ServerError(f"{flag.name} needs --on={runner}: one machine has one server")
    return partial(serve, settings)


def _print(text: str) -> int:
    sys.stdout.write(text)
    return 0


def serve(settings: Settings, visitor: Callable[[str], int] | None = None) -> int:
    """Serve until a signal arrives and return the exit status.

    ``visitor``: runs in a thread once the models are loaded; takes the server's URL and returns an exit status. The
    server stops when it returns, and all of the log goes to stderr. A signal before that is EXIT_INTERRUPTED. Raises
    PybackendError if the server cannot start.
    """
    refuse_bare_models(settings)
    # Imports create many objects and little garbage: without the collector they take a tenth less time.
    gc.disable()
    from pybackend.observability.logging import LOG, take_closed_descriptors

    if visitor is None:  # a command with a visitor has files to remove
        # Until the server installs its handlers: imported code may catch a KeyboardInterrupt in the middle of an
        # import.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    take_closed_descriptors()
    LOG.open(settings.log, sys.stdout if visitor is None else sys.stderr)
    for warning in settings.warnings:
        logging.getLogger(__name__).warning("%s", warning)
    from pybackend.startup import serve_prepared

    def run_loop(settings: Settings, scan: RepositoryScan, launcher: StubLauncher, remote: RemoteRepositories) -> int:
        import uvloop

        from pybackend.cli.process_setup import run_server
        from pybackend.server import Server

        # Exempt them from collection: traversing a hundred thousand permanent objects would delay the first response.
        gc.freeze()
        gc.enable()

        async def main() -> int:
            return await run_server(Server(settings, scan, launcher, remote), settings, visitor)

        return uvloop.run(main())

    return serve_prepared(settings, run_loop)
