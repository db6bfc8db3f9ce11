"""Models under a debugger: on which ports their processes listen, and what an editor needs to know to attach."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Sequence

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.observability.log_lines import one_line
from pybackend.observability.logging import AS_IT_IS
from pybackend.settings import DebugSettings
from pybackend_wire.host_messages import DebuggerPoint

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
"""A client that attaches can run code in the model, so only this machine may."""

_HIGHEST_PORT = 65535


class DebuggerPorts:
    """Hands out one port per process of the models that are debugged; a process that is restarted keeps its own."""

    def __init__(self, settings: DebugSettings) -> None:
        self._settings = settings
        self._taken: set[int] = set()

    def debugs(self, model_name: str) -> bool:
        """Whether the processes of a model run under a debugger."""
        return model_name in self._settings.models

    def reserve(self, instance_names: Sequence[str]) -> list[DebuggerPoint]:
        """Where the processes of these instances are to listen; how to attach to them is written to the log.

        Raises:
            ModelLoadError: there are not that many ports.
        """
        points = []
        for _ in instance_names:
            port = self._free_port() if self._settings.port == 0 else self._next_port()
            self._taken.add(port)
            points.append(DebuggerPoint(port, self._settings.waits))
        log.info("%s", _how_to_attach(instance_names, points), extra=AS_IT_IS)
        return points

    def give_back(self, points: Sequence[DebuggerPoint]) -> None:
        """Their processes are gone."""
        self._taken.difference_update(point.port for point in points)

    def _next_port(self) -> int:
        port = self._settings.port
        while port in self._taken:
            port += 1
        if port > _HIGHEST_PORT:
            raise ModelLoadError(
                f"there is no port left for a debugger from {self._settings.port} on: choose a lower --debug-port",
                ErrorCode.UNAVAILABLE,
            )
        return port

    def _free_port(self) -> int:
        """A port that nobody listens on now; the process that is to listen there finds out if that has changed."""
        while True:
            with socket.socket() as probe:
                probe.bind((ADDRESS, 0))
                port = int(probe.getsockname()[1])
            if port not in self._taken:
                return port


def _how_to_attach(instance_names: Sequence[str], points: Sequence[DebuggerPoint]) -> str:
    """Lines to copy: entries of VS Code's launch.json, and addresses for other editors."""
    named = list(zip(map(one_line, instance_names), points, strict=True))
    entries = [
        {
            "name": f"pybackend: {name}",
            "type": "debugpy",
            "request": "attach",
            "connect": {"host": ADDRESS, "port": point.port},
            "justMyCode": True,
        }
        for name, point in named
    ]
    places = ", ".join(f"{ADDRESS}:{point.port} ({name})" for name, point in named)
    return "\n".join(
        [
            'To debug in VS Code, add to "configurations" in .vscode/launch.json:',
            ",\n".join(json.dumps(entry, indent=4) for entry in entries),
            f"Other clients of the Debug Adapter Protocol attach to {places}",
        ]
    )
