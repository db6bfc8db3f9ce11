"""Prompt notices of changes in directories, from the kernel. They may miss some, so they only shorten a wait."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pybackend.cores import start_thread

log = logging.getLogger(__name__)

_STOP_CHECK_MS = 1000
_STEPS = 5
_NOT_WATCHED = "/__pycache__"


class ChangeNotices:
    """Watches directories, and everything below them, on a thread.

    Links are not followed, and some network file systems have no notices.

    Args:
        changed: set on the event loop after a change.
        settle_s: changes that follow each other within a part of this give one notice.
    """

    def __init__(self, directories: Sequence[Path], changed: asyncio.Event, settle_s: float) -> None:
        self._directories = directories
        self._changed = changed
        self._step_ms = max(1, round(settle_s * 1000 / _STEPS))
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to watch. Listing a large tree takes long, so it is done on the thread too."""
        if not self._directories:
            return
        start_thread(self._watch, "pybackend-notices")

    def stop(self) -> None:
        """Stop soon; no notice follows."""
        self._stop.set()

    def _watch(self) -> None:
        from watchfiles import watch  # only servers that poll need it

        try:
            for _ in watch(
                *self._directories,
                watch_filter=lambda _change, path: _NOT_WATCHED not in path,
                stop_event=self._stop,
                step=self._step_ms,
                rust_timeout=_STOP_CHECK_MS,
                yield_on_timeout=False,
                raise_interrupt=False,
            ):
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._notice)
        except (OSError, RuntimeError) as error:
            log.warning("Changes of the repositories are noticed only by polling: they cannot be watched: %s", error)

    def _notice(self) -> None:
        if not self._stop.is_set():
            self._changed.set()
