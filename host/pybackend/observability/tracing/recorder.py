"""Takes finished traces out of the event loop: a thread gives them to the file or the collector."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.threads import start_thread

log = logging.getLogger(__name__)

CLOSE_S = 3.0
"""How long the server's end waits for the last traces."""


class TraceSink(ABC):
    """Where traces go; used by one thread."""

    @abstractmethod
    def write(self, traces: list[RequestTrace]) -> None:
        """Write traces. Raises TraceLossError if they are lost."""

    def interrupt(self) -> None:  # noqa: B027  most writes wait for nobody
        """Called by another thread: a write that waits for somebody must end soon."""

    @abstractmethod
    def close(self) -> None:
        """Write what is held back, and finish."""


class TraceLossError(Exception):
    """Traces could not be written; the text says why."""


class Recorder:
    """A queue and a thread.

    Further traces than ``most_waiting`` are lost. They wait ``period_s`` for others, unless ``batch_size`` are there.
    """

    def __init__(self, sink: TraceSink, *, most_waiting: int, period_s: float, batch_size: int) -> None:
        self._sink = sink
        self._most_waiting = most_waiting
        self._period_s = period_s
        self._batch_size = batch_size
        self._changed = threading.Condition()
        self._waiting: list[RequestTrace] = []
        self._lost = 0
        self._complained = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, trace: RequestTrace) -> None:
        """Record a trace soon, or lose it if too many wait."""
        with self._changed:
            is_full = len(self._waiting) >= self._most_waiting
            if is_full:
                self._lost += 1
            else:
                self._waiting.append(trace)
                if self._thread is None:
                    self._thread = start_thread(self._run, "pybackend-traces")
                elif len(self._waiting) in {1, self._batch_size}:
                    self._changed.notify_all()
        if is_full:
            self._complain(f"more than {self._most_waiting} traces wait")

    def close(self) -> None:
        """Write what waits, within :data:`CLOSE_S`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        thread = self._thread
        if thread is None:
            self._sink.close()
            return
        thread.join(CLOSE_S / 2)
        if thread.is_alive():
            self._sink.interrupt()
            thread.join(CLOSE_S / 2)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                self._changed.wait_for(lambda: self._closing or len(self._waiting) >= self._batch_size, self._period_s)
                batch, self._waiting = self._waiting[: self._batch_size], self._waiting[self._batch_size :]
                is_last = self._closing and not self._waiting
            self._write(batch)
            if is_last:
                self._call(self._sink.close)
                return

    def _write(self, batch: list[RequestTrace]) -> None:
        if batch and self._call(lambda: self._sink.write(batch)):
            with self._changed:
                lost, self._lost = self._lost, 0
            if self._complained:
                self._complained = False
                log.warning("traces are recorded again; lost %d of them", lost)
        elif batch:
            with self._changed:
                self._lost += len(batch)

    def _call(self, work: Callable[[], None]) -> bool:
        """Do something with the sink; False if traces are lost."""
        try:
            work()
        except TraceLossError as error:
            self._complain(str(error))
            return False
        except Exception:  # whatever the sink raises, the thread that records must go on
            log.exception("traces could not be recorded")
            return False
        return True

    def _complain(self, reason: str) -> None:
        """Warn once, until traces are recorded again."""
        if not self._complained:
            self._complained = True
            log.warning("traces are lost: %s", reason)


def wall_offset_ns() -> int:
    """Nanoseconds to add to ``time.monotonic_ns()`` for the time since 1970."""
    return time.time_ns() - time.monotonic_ns()
