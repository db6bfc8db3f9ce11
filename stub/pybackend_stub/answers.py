"""Collects answers for the host: several executions' results leave in one frame, but none waits for a slow one."""

import threading
import time
from typing import Any, List, Optional, Sequence

from pybackend_stub.channel import HostChannel
from pybackend_stub.tensor_io import OutputTail
from pybackend_wire.messages import BlockPlace, RequestResult
from pybackend_wire.stub_messages import FreeInput, Rescheduled, encoded, encoded_result

KEEP_NS = 1_000_000
"""How long an answer may wait for others: for a shorter time a wake-up of the host costs more than the wait."""


class AnswerQueue:
    """Collects messages until they are due.

    Short executions that arrived together are answered together. If one of them takes long, the host notices the
    silence and nudges the attendant, which sends the collected answers. So a slow execution delays no answer, and fast
    ones need no timer.

    Args:
        channel: receives the answers.
    """

    def __init__(self, channel: HostChannel) -> None:
        self.lock = threading.RLock()
        """Held while an answer is put together: its offsets count from the tail that :meth:`flush` sends."""
        self.tail = OutputTail()
        self._channel = channel
        self._messages: List[Any] = []
        self._oldest_ns = 0
        self._in_a_hurry = False

    def add_result(
        self,
        execution: int,
        began_ns: int,
        start_ns: int,
        end_ns: int,
        results: "Sequence[Optional[RequestResult]]",
        rescheduled: "Sequence[int]" = (),
    ) -> int:
        """Queue a :class:`pybackend_wire.stub_messages.Result`; returns the time when it was ready."""
        done_ns = time.monotonic_ns()
        if not self._messages:
            self._oldest_ns = done_ns
        if rescheduled:
            self._messages.append(encoded(Rescheduled(execution, list(rescheduled))))
        self._messages.append(encoded_result(execution, began_ns, start_ns, end_ns, done_ns, results))
        return done_ns

    def add_released(self, blocks: "List[BlockPlace]") -> None:
        """Queue released input blocks, after the result that used them."""
        with self.lock:
            self._messages.append(encoded(FreeInput(blocks)))

    def hurry(self) -> None:
        """Keep no more answers until the end of the current frame."""
        self._in_a_hurry = True

    def keep_or_flush(self, now_ns: int) -> None:
        """Keep the answers while more executions follow at once, unless one of them turned out to be slow."""
        if self._in_a_hurry or now_ns - self._oldest_ns >= KEEP_NS:
            self.flush()

    def flush(self) -> None:
        """Send the collected answers in one frame."""
        with self.lock:
            if self._messages:
                messages, self._messages = self._messages, []
                self._channel.send(messages, self.tail.take())

    def end_of_frame(self) -> None:
        """Send the answers: the last execution that arrived together is done."""
        self._in_a_hurry = False
        self.flush()

    def on_nudge(self) -> None:
        """Send the answers: the host has waited long enough."""
        self.hurry()
        self.flush()
