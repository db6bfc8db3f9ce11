"""The console beside a server: a row of :mod:`pybackend.plugins`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pybackend.errors import SettingError
from pybackend.flag import Flag, switch
from pybackend.observability.tracing.settings import TraceMode
from pybackend.runner import Addresses, Companion
from pybackend.settings import Settings
from pybackend_tools.console.extra import require_extra

_NAME = "console"


class Console:
    """See :class:`pybackend.runner.Companion`."""

    flags: Mapping[str, Sequence[Flag]] = {
        "server": (
            switch(
                "--console",
                "run a console for the browser beside the server, and print its link",
                default=False,
                page="run [a console](console.md) for the browser beside the server, and print its link",
            ),
        )
    }

    def decide(self, settings: Settings, given: argparse.Namespace, _environ: Mapping[str, str]) -> Settings:
        """The settings of a server with a console keep traces in memory, unless a file is named for them."""
        if not given.console:
            return settings
        require_extra()
        if not settings.http.enabled:
            raise SettingError("--console needs the port for HTTP: leave out --allow-http=false.")
        if settings.trace.mode is TraceMode.TRITON and not settings.trace.file:
            settings = replace(settings, trace=replace(settings.trace, mode=TraceMode.MEMORY))
        return settings.with_extension(_NAME, True)

    def start(self, settings: Settings, addresses: Addresses) -> Callable[[], None] | None:
        if _NAME not in settings.extensions:
            return None
        from pybackend_tools.console.console_server import ConsoleBeside  # late: most servers start without it

        return ConsoleBeside(settings, addresses).close


CONSOLE: Companion = Console()
