"""Keeps the first requests of a model in its queue until so many wait, so that tests see how a batcher combines them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pybackend.errors import ModelLoadError

log = logging.getLogger(__name__)

WAITING = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOG = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


class QueueHold:
    """Ends for good once enough requests wait.

    Args:
        waiting: number of requests that must wait; of sequences, those that have slots count.
        backlog: number of requests that must wait in sequences without slots.
    """

    def __init__(self, waiting: int, backlog: int) -> None:
        self._waiting = waiting
        self._backlog = backlog

    def is_over(self, waiting: int, backlog: int | None = None) -> bool:
        """True if requests may be executed, now that so many wait; ``backlog`` is None for a batcher without slots."""
        if self._waiting and waiting >= self._waiting and (backlog is None or backlog >= self._backlog):
            self._waiting = 0
        return not self._waiting


def queue_hold(environ: Mapping[str, str], model_name: str) -> QueueHold | None:
    """The hold that the environment demands, None for none.

    Raises:
        ModelLoadError: a variable has no number.
    """
    waiting = _number(environ, WAITING)
    if not waiting:
        return None
    backlog = _number(environ, BACKLOG)
    log.warning(
        "model '%s' executes nothing until %d requests wait, because %s is set: this is for tests only",
        model_name,
        waiting,
        WAITING,
    )
    return QueueHold(waiting, backlog)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "") or "0"
    if not text.isdecimal():
        raise ModelLoadError(f"the environment variable {name} must be a whole number of requests, not '{text}'")
    return int(text)
