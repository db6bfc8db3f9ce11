"""Command lines as the program reads them."""

from collections.abc import Sequence

from pybackend.cli.command_line import parse
from pybackend.cli.commands import runnable
from pybackend.settings import Settings


def serve_settings(arguments: Sequence[str]) -> Settings:
    """The settings of a server with these arguments, the first of which is ``serve``; prints them if the arguments say
    so."""
    line = parse(arguments)
    assert line is not None
    run = runnable(line)
    if line.given.print_config:
        run()
    return line.settings
