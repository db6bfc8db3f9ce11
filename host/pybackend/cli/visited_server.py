"""A server that a command runs for itself: on a free port of this machine, with the models that the command loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pybackend.cli.options import parse_serve_flags
from pybackend.settings import Settings

Serve = Callable[[Settings, Callable[[str], int]], int]
"""Runs a server for the length of a function that gets its URL, and returns that function's exit status."""

SILENT = ("--log-warning=false", "--log-error=false")
"""For commands whose own error has the reason."""


def visited_settings(repository: Path, own: Sequence[str], given: Sequence[str]) -> Settings:
    """The settings of such a server.

    ``own``: flags of the command. ``given``: flags of its user. They come last, so that they win. Raises PybackendError
    if a flag is wrong.
    """
    return parse_serve_flags(
        [
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
    )
