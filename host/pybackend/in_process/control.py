"""Settings that change while a server in the caller's process runs: of its log, and of traces."""

from __future__ import annotations

import json
from typing import Any

from pybackend.engine.engine import InferenceEngine
from pybackend.in_process.errors import InvalidArgumentError, UnsupportedError
from pybackend.in_process.life import Life
from pybackend.observability.logging import LOG
from pybackend.protocol.documents.settings import log_changes_in, log_values, trace_changes_in, trace_values


class LogControl:
    """The settings of the log, by their names in ``/v2/logging``."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def settings(self) -> dict[str, Any]:
        """The settings in force."""
        self._check()
        return self._life.get(lambda: log_values(LOG.settings))

    def update(self, **settings: Any) -> dict[str, Any]:
        """Change settings, and return all of them."""
        self._check()
        document = _document(settings)
        self._life.get(lambda: LOG.change(**log_changes_in(document)))
        return self.settings()

    def _check(self) -> None:
        if not self._life.options.writes_log:
            raise UnsupportedError(
                "the lines of this server go where Python's logging sends them: set logging.getLogger('pybackend').setLevel(), "
                "or make the server with log_info=True"
            )


class TraceControl:
    """The settings of traces, by their names in ``/v2/trace/setting``; of the server, or of one model."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def settings(self, model_name: str = "") -> dict[str, Any]:
        """The settings in force."""
        engine = self._life.host.server.engine
        return self._life.get(lambda: trace_values(engine.tracer.settings_of(_full_name(engine, model_name))))

    def update(self, model_name: str = "", **settings: Any) -> dict[str, Any]:
        """Change settings, and return all of them; None ends an earlier change."""
        engine, document = self._life.host.server.engine, _document(settings)
        self._life.get(lambda: engine.tracer.change(_full_name(engine, model_name), trace_changes_in(document)))
        return self.settings(model_name)


def _full_name(engine: InferenceEngine, model_name: str) -> str:
    return engine.serving(model_name) if model_name else ""


def _document(settings: dict[str, Any]) -> bytes:
    try:
        return json.dumps(settings).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the settings cannot be written as JSON: {error}") from None
