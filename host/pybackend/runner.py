"""Engines that run servers instead of this process, and programs that run beside a server."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pybackend.flag import Flag, FlagOwner
from pybackend.settings import Settings


class Given(NamedTuple):
    """One setting in effect."""

    flag: Flag
    texts: Sequence[str] | None  # its values as on the command line, None for the default
    source: str  # where it is from, for messages; :data:`DEFAULT` for the default


COMMAND_LINE, DEFAULT = "command line", "default"


Visitor = Callable[[str], int]
"""Uses a server for as long as it runs: takes the URL, such as ``http://127.0.0.1:8000``, and returns an exit status.
"""

Serve = Callable[[Settings, Visitor | None], int]
"""Runs a server in this process until a signal arrives, or a visitor returns, and returns the exit status."""


class Runner(FlagOwner, Protocol):
    """Runs servers elsewhere; ``serve --on=NAME`` names it."""

    def prepare(self, given: argparse.Namespace, sources: Sequence[Given], settings: Settings) -> Callable[[], int]:
        """The function that runs the servers of a command line, and returns the exit status.

        ``settings`` are those of one server with the flags that ``given`` and ``sources`` have. Raises ServerError if a
        flag cannot be used so.
        """
        ...


class Addresses(NamedTuple):
    """Where a server listens; ``""`` for what it does not serve."""

    http: str
    grpc: str
    metrics: str
    diagnostics_headers: Mapping[str, str]  # that its diagnostics demand


class Companion(FlagOwner, Protocol):
    """Runs beside a server, in a separate process, if its flags say so: :meth:`FlagOwner.decide` checks that it can."""

    def start(self, settings: Settings, addresses: Addresses) -> Callable[[], None] | None:
        """Start it; returns what ends it and waits for its end, None if the settings do not ask for it."""
        ...
