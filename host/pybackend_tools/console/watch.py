"""Looks at a server again and again while somebody looks at the console; several pages share one look."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pybackend.errors import InferenceError, PybackendError
from pybackend.modelconfig.group_advice import GroupAdvice
from pybackend_client.connection import Connection
from pybackend_client.figures import Row, Sample, Source, advice_between, rows_between
from pybackend_tools.connection_flags import told_ports
from pybackend_tools.console.gate import Session
from pybackend_tools.console.settings import ConsoleSettings

INTERVAL_S = 2.0
_SHARE = 10
"""A look that takes long is followed by a pause so many times as long: the console must not load the server."""

_NO_CONTROL = "This server loads and unloads models by itself: --model-control-mode=explicit lets clients do it"
_POINTS = 150
_MOST_HISTORIES = 32


@dataclass(frozen=True)
class Look:
    """The findings of one look."""

    rows: tuple[Row, ...] = ()
    advice: tuple[GroupAdvice, ...] = ()  # models that could share a process and save by it
    sample: Sample | None = None
    server: dict[str, Any] = field(default_factory=dict)  # GET /v2


class Watch:
    """A server as one set of headers may see it."""

    def __init__(self, settings: ConsoleSettings, headers: dict[str, str]) -> None:
        self.access = access = replace(settings.access, headers={**settings.access.headers, **headers})
        self.settings = settings
        self.server = Connection(settings.url, settings.timeout_s, "The console goes on asking", access)
        self.grpc_url = settings.grpc_url
        self._source = Source(self.server)
        self.look = Look()
        self.looks = 0  # grows with each look
        self.trouble = ""  # why the last look found nothing, ``""`` if it did
        self.is_locked = False  # the server wants an API key or a header
        self.control_refusal = (
            ""  # why models cannot be loaded and unloaded, ``""`` if they can, or the server does not tell
        )
        self.histories: dict[tuple[str, str], deque[tuple[float, Row]]] = {}
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()

    @property
    def metrics_trouble(self) -> str:
        """Why there are no metrics, ``""`` if there are."""
        if self._source.metrics is not None:
            return self._source.trouble
        return (
            "the server has no port for them"
            if self.settings.metrics_url is None
            else "this console was started without"
        )

    def row(self, model: str, version: str) -> Row | None:
        """The row of a version; without one, of the newest that is ready."""
        rows = [row for row in self.look.rows if row.model == model and version in {"", row.version}]
        rows.sort(key=lambda row: (row.state == "READY", len(row.version), row.version))
        return rows[-1] if rows else None

    def versions(self, model: str) -> list[str]:
        """The versions of a model that are ready."""
        return [row.version for row in self.look.rows if row.model == model and row.state == "READY"]

    def history(self, model: str, version: str) -> deque[tuple[float, Row]]:
        """The rows of a version over time; they are kept from now on."""
        key = (model, version)
        if key not in self.histories:
            while len(self.histories) >= _MOST_HISTORIES:
                del self.histories[next(iter(self.histories))]
            self.histories[key] = deque(maxlen=_POINTS)
        return self.histories[key]

    def look_now(self) -> None:
        """Look again at once, for example after a model was loaded."""
        self._now.set()

    def open(self) -> None:
        """Begin to look, if nobody did."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look_again_and_again())

    def close(self) -> None:
        """One that called :meth:`open` has gone; without any the looks end."""
        self._watchers -= 1
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look_again_and_again(self) -> None:
        before: Sample | None = None
        while True:
            began_s = time.monotonic()
            try:
                look = await asyncio.to_thread(self._looked, before)
            except (PybackendError, ValueError, KeyError, TypeError, AttributeError) as error:
                self._fail(error)
                before = None  # another server may come
            else:
                self._take(look)
                before = look.sample
            self.looks += 1
            took_s = time.monotonic() - began_s
            self._now.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._now.wait(), max(INTERVAL_S, _SHARE * took_s))

    def _looked(self, before: Sample | None) -> Look:
        server = self.server.get("/v2")
        if before is None:
            self.control_refusal = self._refusal_of_control()
            self._find_ports()
        sample = self._source.sample()
        before = before or sample
        rows, advice = rows_between(before, sample), advice_between(before, sample)
        return Look(tuple(rows), tuple(advice), sample, server if isinstance(server, dict) else {})

    def _find_ports(self) -> None:
        """Where metrics and gRPC are: as the settings say, else as the server says, else where they usually are."""
        settings, addresses = self.settings, told_ports(self.server)
        self.grpc_url = settings.grpc_url or addresses["grpc"]
        at = f"http://{addresses['metrics']}" if addresses["metrics"] else ""
        url = at if settings.metrics_url is None else settings.metrics_url
        self._source.metrics = Connection(url, settings.timeout_s, "", self.access, "--metrics-url") if url else None

    def _refusal_of_control(self) -> str:
        with suppress(PybackendError, KeyError, TypeError):
            rows = self.server.get("/v2/diagnostics/settings")["settings"]
            mode = next(row["value"] for row in rows if row["name"] == "--model-control-mode")
            return "" if mode == "explicit" else _NO_CONTROL
        return ""

    def _take(self, look: Look) -> None:
        self.trouble, self.is_locked, self.look = "", False, look
        for row in look.rows:
            history = self.histories.get((row.model, row.version))
            if history is not None:
                history.append((time.time(), row))

    def _fail(self, error: Exception) -> None:
        if isinstance(error, PybackendError):
            self.trouble = str(error)
        else:
            self.trouble = f"the program at {self.server.url} does not answer as the v2 protocol says: {error}"
        self.is_locked = is_denied(error)


def is_denied(error: Exception) -> bool:
    """True if the server wants an API key, or a header."""
    return isinstance(error, InferenceError) and any(
        words in error.message for words in ("API key", "API is restricted")
    )


class Watches:
    """One watch for each set of headers."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._watches: dict[tuple[tuple[str, str], ...], Watch] = {}

    def of(self, session: Session) -> Watch:
        """The watch of a session."""
        key = tuple(sorted(session.headers.items()))
        if key not in self._watches:
            self._watches[key] = Watch(self._settings, session.headers)
        return self._watches[key]
