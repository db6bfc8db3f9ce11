"""Answers on their way to the host: several executions' results leave in one frame, but none waits for a slow one."""

import threading
import time
from typing import Any, List, Optional, Sequence, Tuple

from pybackend_stub.channel import HostChannel
from pybackend_stub.tensor_io import OutputTail
from pybackend_wire.messages import RequestResult, StubMessage

KEEP_NS = 1_000_000
"""How long an answer may wait for others: below it a wake-up of the host costs more than the wait."""


class AnswerQueue:
    """Collects messages until they are due.

    Short executions that arrived together are answered together. Should one of them last, the host notices that nothing
    comes and nudges the attendant, which sends what has gathered. So a slow execution holds up no answer, and fast ones
    pay for no timer.

    Args:
        channel: where answers go.
    """

    def __init__(self, channel: HostChannel) -> None:
        self.lock = threading.RLock()
        """Held while an answer is put together: its offsets count from the tail that :meth:`flush` takes."""
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
        """Queue the outcome of an execution, :class:`pybackend_wire.messages.Result`; returns when that was."""
        done_ns = time.monotonic_ns()
        if not self._messages:
            self._oldest_ns = done_ns
        if rescheduled:
            self._messages.append((StubMessage.RESCHEDULED, execution, rescheduled))
        self._messages.append((StubMessage.RESULT, execution, began_ns, start_ns, end_ns, done_ns, results))
        return done_ns

    def add_released(self, blocks: "List[Tuple[int, int]]") -> None:
        """Queue input blocks that go back, behind the result that used them."""
        with self.lock:
            self._messages.append((StubMessage.FREE_INPUT, blocks))

    def hurry(self) -> None:
        """Keep no more answers until the end of the frame that is being worked on."""
        self._in_a_hurry = True

    def keep_or_flush(self, now_ns: int) -> None:
        """More executions follow at once: answer them together, unless one of them turned out to be slow."""
        if self._in_a_hurry or now_ns - self._oldest_ns >= KEEP_NS:
            self.flush()

    def flush(self) -> None:
        """Send what has gathered in one frame."""
        with self.lock:
            if self._messages:
                messages, self._messages = self._messages, []
                self._channel.send(messages, self.tail.take())

    def end_of_frame(self) -> None:
        """The last execution that arrived together is done."""
        self._in_a_hurry = False
        self.flush()

    def on_nudge(self) -> None:
        """The host has waited for long enough."""
        self.hurry()
        self.flush()
