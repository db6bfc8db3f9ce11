"""Answers on their way to the host: several executions' results leave in one frame, but none waits for a slow one."""

import threading
import time
from typing import Any, List, Optional

from pybackend_stub.channel import HostChannel
from pybackend_stub.tensor_io import OutputWriter

KEEP_NS = 1_000_000
"""How long an answer may wait for others: below it a wake-up of the host costs more than the wait."""


class AnswerQueue:
    """Collects messages until they are due.

    While the model runs, a thread of its own sees to it that kept answers leave in time; it is started when the first
    answer is kept and sleeps while none is.
    """

    def __init__(self, channel: HostChannel, writer: OutputWriter) -> None:
        self.lock = threading.RLock()
        """Held while an answer is put together: its offsets count from the tail that :meth:`flush` takes."""
        self._channel = channel
        self._writer = writer
        self._messages: List[Any] = []
        self._oldest_ns = 0
        self._armed = False
        self._wake: Optional[threading.Event] = None

    def add(self, message: Any, ready_ns: int) -> None:
        """Queue one message."""
        if not self._messages:
            self._oldest_ns = ready_ns
        self._messages.append(message)

    def due(self, now_ns: int) -> bool:
        """True if an answer has waited long enough."""
        return bool(self._messages) and now_ns - self._oldest_ns >= KEEP_NS

    def flush(self) -> None:
        """Send what has gathered in one frame."""
        with self.lock:
            if self._messages:
                messages, self._messages = self._messages, []
                self._channel.send(messages, self._writer.take_tail())

    def keep(self) -> None:
        """Leave what has gathered for a later :meth:`flush`, which is certain to come within about a millisecond."""
        if self._armed:
            return
        self._armed = True
        if self._wake is None:
            self._wake = threading.Event()
            threading.Thread(target=self._send_late, args=(self._wake,), name="pybackend-answers", daemon=True).start()
        self._wake.set()

    def _send_late(self, wake: threading.Event) -> None:
        while True:
            wake.wait()
            wake.clear()
            time.sleep(KEEP_NS / 1e9)
            self._armed = False
            try:
                self.flush()
            except OSError:
                return  # the host is gone; the main thread notices by itself
