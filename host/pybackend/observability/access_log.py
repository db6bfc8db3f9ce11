"""A line about every answered request. Lines are formatted and written in batches, after the answers."""

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from pybackend.observability.logging import LOG

_PERIOD_S = 0.1
"""The longest that a line waits for others."""

_BATCH = 256
"""Lines that are written together. They take the loop about a millisecond."""


class AccessRecord(NamedTuple):
    """A request and its answer.

    The ``protocol`` is ``http`` or ``grpc``, the ``path`` has no query, and the ``status`` is None if the client left
    before its answer. The duration is that from the request's head until the answer was handed over to be sent.
    """

    protocol: str
    client: str
    method: str
    path: str
    status: int | str | None
    received_bytes: int
    sent_bytes: int
    duration_ns: int
    ended_s: float
    about: Mapping[str, str]


class AccessLog:
    """Collects the lines of one event loop."""

    def __init__(self) -> None:
        self._waiting: list[AccessRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, access: AccessRecord) -> None:
        """Write about a request soon."""
        self._waiting.append(access)
        if len(self._waiting) >= _BATCH:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self.flush)

    def flush(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        line, pid = LOG.informational.line, os.getpid()
        LOG.write_lines(
            [line(each.ended_s, logging.INFO, pid, "access:0", _message(each), _fields(each)) for each in waiting]
        )


def _message(access: AccessRecord) -> str:
    status = "-" if access.status is None else access.status
    return (
        f"{access.protocol} {access.client} {access.method} {access.path} {status} "
        f"in={access.received_bytes} out={access.sent_bytes} {access.duration_ns / 1e6:.3f} ms"
        + "".join(f" {name}={value}" for name, value in access.about.items())
    )


def _fields(access: AccessRecord) -> dict[str, int | str | float | None]:
    return {
        "door": access.protocol,
        "client": access.client,
        "method": access.method,
        "path": access.path,
        "status": access.status,
        "received_bytes": access.received_bytes,
        "sent_bytes": access.sent_bytes,
        "duration_ms": round(access.duration_ns / 1e6, 3),
        **access.about,
    }
