"""Who reads the control socket, while several threads wait for what it brings.

One thread at a time reads: whoever waits for a message and finds nobody reading. It handles everything that arrives, on
behalf of all, until its own message is there; then another waiting thread takes over, the main thread first. So an idle
stub, and a model that calls another model and waits, pay for no thread and no hand-over; only work that nobody waits for
(replies to coroutines, checks of readiness during a long ``execute``) needs the :class:`Attendant`.
"""

import os
import threading
import traceback
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Tuple

from pybackend_stub.channel import HostChannel, HostGone
from pybackend_stub.service_thread import ServiceThread
from pybackend_wire.messages import HostMessage

Work = Tuple["List[Any]", bytearray]
"""A message for the main thread, and the tail of its frame."""

_WORK = frozenset({HostMessage.LOAD, HostMessage.INITIALIZE, HostMessage.EXECUTE, HostMessage.FINALIZE})
_FROM_WITHIN = 1 << 32
"""What this process adds to the eventfd that the host adds 1 to, so that a reader can tell."""


class Waiter:
    """One thread's wait for a message. ``done`` is set by whoever handles that message."""

    __slots__ = ("_wakeup", "done")

    def __init__(self) -> None:
        self.done = False
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def wake(self) -> None:
        """Let the thread look again; only ever called for one that sleeps, or is about to."""
        self._wakeup.release()

    def sleep(self) -> None:
        """Wait for :meth:`wake`."""
        self._wakeup.acquire()


class Receiver:
    """Distributes what the host says.

    Args:
        channel: to read from.
        handle: takes every message that is no work for the main thread, in the thread that read it.
        hand_back: gives executions back to the host that arrived while the main thread was busy.
    """

    def __init__(
        self,
        channel: HostChannel,
        handle: "Callable[[List[Any], bytearray], None]",
        hand_back: "Callable[[List[int]], None]",
    ) -> None:
        self._channel = channel
        self._handle = handle
        self._hand_back = hand_back
        # Re-entrant: the collector may end a model's objects while it is held, and they may come here.
        self._guard = threading.RLock()
        self._reading = False
        self._sleeping: List[Waiter] = []
        self._main = Waiter()
        self._work: Deque[Work] = deque()
        self._unwatched = 0
        self._wanted = False
        self._missed = False
        self._wake_attendant: Callable[[], None] = lambda: None
        self._ended = False
        self.hands_back = True
        """False if the main thread never runs a model's code for long: then work may wait for it."""
        self._last_returned = -1
        self.is_idle = False
        """True while the main thread waits for work."""

    # The main thread

    def take_work(self) -> "Optional[Work]":
        """The main thread's next message; if there is none it counts as idle from now on."""
        with self._guard:
            self.is_idle = not self._work
            if self.is_idle:
                return None
            self._wanted |= self._missed
            self._missed = False
            if not self._reading:
                self._find_reader()
            return self._work.popleft()

    def next_work(self) -> Work:
        """The main thread's next message; waits for it."""
        while True:
            work = self.take_work()
            if work is not None:
                return work
            if self._begin_reading(self._main):
                try:
                    while not self._work:
                        self._read()
                finally:
                    self._end_reading(goes_on=True)
            else:
                self._main.sleep()

    @property
    def has_more_work(self) -> bool:
        """True if :meth:`next_work` would not wait."""
        return bool(self._work)

    def end(self) -> None:
        """Nothing more is expected: the end of file is no accident from now on."""
        self._ended = True

    # Any thread

    def wait(self, waiter: Waiter) -> None:
        """Return once ``waiter.done`` is set; meanwhile this thread may read."""
        while not waiter.done:
            if self._begin_reading(waiter):
                try:
                    while not waiter.done:
                        self._read()
                finally:
                    self._end_reading()
            elif not waiter.done:
                waiter.sleep()

    def finish(self, waiter: Waiter) -> None:
        """What ``waiter`` waits for has come."""
        with self._guard:
            waiter.done = True
            self._wake(waiter)

    def poll(self) -> None:
        """Handle what has arrived, unless somebody reads anyway."""
        if not self._begin_reading(None):
            return
        try:
            while self._channel.has_input():
                self._read()
        finally:
            self._end_reading()

    # What nobody waits for

    def on_need(self, wake_attendant: "Callable[[], None]") -> None:
        """Call this when somebody should read and no thread waits."""
        self._wake_attendant = wake_attendant

    def expect(self) -> None:
        """A message is on its way that no thread waits for."""
        with self._guard:
            self._unwatched += 1
        self._see_to_reading()

    def expected_came(self) -> None:
        """The counterpart of :meth:`expect`."""
        with self._guard:
            self._unwatched -= 1

    def return_work(self) -> None:
        """Give executions back that arrived together with the one that runs: it waits for something, or lasts."""
        if not self._work:
            return
        handed_back: List[int] = []
        with self._guard:
            if self.is_idle or not self.hands_back:  # the main thread is about to take it
                return
            kept: Deque[Work] = deque()
            for work in self._work:
                if work[0][0] == HostMessage.EXECUTE:
                    handed_back.append(work[0][1])
                else:
                    kept.append(work)
            self._work = kept
            if handed_back:
                self._last_returned = handed_back[-1]
        if handed_back:
            self._hand_back(handed_back)

    def attend(self, nudged: bool) -> None:
        """Read as long as the main thread is busy; work that it should not keep waiting goes back to the host.

        Args:
            nudged: the host wants to be heard: it has sent something before.
        """
        self.return_work()
        with self._guard:
            if self.is_idle:
                # The main thread reads. It stops at the next work, and what the host has sent may lie behind that.
                self._missed |= nudged
                return
        while self._begin_attending():
            try:
                self._read()
            finally:
                self._end_reading(goes_on=True)

    def _begin_attending(self) -> bool:
        return not self.is_idle and self._begin_reading(None, wanted=True)

    def _see_to_reading(self) -> None:
        with self._guard:
            if not self._reading:
                self._wake_attendant()

    # Reading

    def _begin_reading(self, waiter: "Optional[Waiter]", wanted: bool = False) -> bool:
        """True if this thread reads now; else ``waiter`` is woken when it is done or nobody reads."""
        with self._guard:
            if not self._reading:
                self._reading = True
                if wanted or waiter is self._main:  # others stop at what they wait for, be there more or not
                    self._wanted = False
                return True
            self._wanted |= wanted
            if waiter is not None and not waiter.done and not (waiter is self._main and self._work):
                self._sleeping.append(waiter)
            elif waiter is self._main:
                waiter.wake()  # work came between two looks
            return False

    def _end_reading(self, goes_on: bool = False) -> None:
        with self._guard:
            self._reading = False
            if self._main in self._sleeping:
                self._wake(self._main)
            elif not goes_on:  # else this thread reads on, or the main thread does, or finds somebody
                self._find_reader()

    def _find_reader(self) -> None:
        """Somebody else should read, if anybody waits for anything."""
        if self._sleeping:
            self._wake(self._sleeping[-1])
        elif self._unwatched or self._wanted:
            self._wake_attendant()

    def _wake(self, waiter: Waiter) -> None:
        if waiter in self._sleeping:
            self._sleeping.remove(waiter)
            waiter.wake()

    def _read(self) -> None:
        """Take one frame from the socket and handle it."""
        try:
            messages, tail = self._channel.receive()
            handed_back: List[int] = []
            for message in messages:
                if message[0] not in _WORK:
                    self._handle(message, tail)
                elif not self._accept(message, tail):
                    handed_back.append(message[1])
            if handed_back:
                self._hand_back(handed_back)
        except HostGone:
            if not self._ended:
                # Nobody is left to serve. A model's threads or exit handlers could keep the process alive.
                os._exit(0)
            raise
        except BaseException:  # noqa: BLE001  a broken contract; whoever reads, the stub ends
            traceback.print_exc()
            os._exit(1)

    def _accept(self, message: "List[Any]", tail: bytearray) -> bool:
        """Queue work for the main thread; False for an execution that would have to wait for another one."""
        with self._guard:
            is_execution = message[0] == HostMessage.EXECUTE
            # What follows was sent before the host knew of what went back, and must not overtake that.
            if is_execution and self.hands_back and (not self.is_idle or message[1] == self._last_returned + 1):
                self._last_returned = message[1]
                return False
            self._work.append((message, tail))
            self._wake(self._main)
            return True


class Attendant:
    """A thread that acts while the main thread runs a model's code: started when first needed, asleep until woken.

    Args:
        nudges: an eventfd that the host writes to when it should like an answer, or to be heard, at once.
        receiver: what to read from then.

    Attributes:
        on_nudge: what to do first.
    """

    def __init__(self, nudges: int, receiver: Receiver) -> None:
        self.on_nudge: Callable[[], None] = lambda: None
        self._nudges = nudges
        self._receiver = receiver
        self._started = False

    def start(self) -> None:
        """From now on nudges are heeded."""
        if not self._started:
            self._started = True
            ServiceThread("pybackend-attendant", self._run).start()

    def wake(self) -> None:
        """Nudge it from within."""
        self.start()
        os.write(self._nudges, _FROM_WITHIN.to_bytes(8, "little"))

    def _run(self) -> None:
        try:
            while True:
                count = int.from_bytes(os.read(self._nudges, 8), "little")
                self.on_nudge()
                self._receiver.attend(nudged=count % _FROM_WITHIN > 0)
        except HostGone:
            return  # a reader notices by itself
