"""Decides which thread reads the control socket while several threads wait for messages.

One thread at a time reads: a thread that waits for a message while no other reads. It handles everything that arrives
for all threads until its own message is there; then another waiting thread takes over, the main thread first. So an
idle stub, and a model that calls another model and waits, need no extra thread and no hand-over. Only messages that no
thread waits for (replies to coroutines, probes of readiness during a long ``execute``) need the :class:`Attendant`.
"""

import os
import select
import threading
import traceback
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Deque, List, Optional, Set, Tuple

from pybackend_stub.channel import HostChannel, HostGone
from pybackend_wire.host_messages import Finalize, FromHost, Initialize, Join, Load, Reply
from pybackend_wire.messages import NUDGE, NUDGE_TO_ANSWER


class ServiceThread(threading.Thread):
    """A daemon thread that runs no code of a model.

    Attributes:
        pydev_do_not_trace: tells debugpy not to stop it.
        is_pydev_daemon_thread: tells debugpy not to show it.
    """

    pydev_do_not_trace = True
    is_pydev_daemon_thread = True

    def __init__(self, name: str, run: "Callable[..., None]", *arguments: Any) -> None:
        super().__init__(target=run, args=arguments, name=name, daemon=True)


Work = Tuple[Any, bytearray]
"""A message for the main thread, and the tail of its frame. An EXECUTE, of which there are many, is the list that came.
"""

_WORK = (Load, Initialize, Join, Finalize)
_ANSWERS_ONLY = set(NUDGE_TO_ANSWER)
_NUDGES_BYTES = 4096
"""Bytes of nudges to read at a time: many nudges mean the same as one."""


class Waiter:
    """One thread's wait for a message. The thread that handles the message sets ``done``."""

    __slots__ = ("_wakeup", "done")

    def __init__(self) -> None:
        self.done = False
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def wake(self) -> None:
        """Make the thread check again; only called for a thread that sleeps or is about to."""
        self._wakeup.release()

    def sleep(self) -> None:
        self._wakeup.acquire()


class Receiver:
    """Distributes the host's messages.

    Args:
        handle: receives every message that is not work for the main thread, in the thread that read it.
        hand_back: returns executions to the host that arrived while the main thread was busy.
    """

    def __init__(
        self,
        channel: HostChannel,
        handle: "Callable[[FromHost, bytearray], None]",
        hand_back: "Callable[[List[int]], None]",
    ) -> None:
        self._channel = channel
        self._handle = handle
        self._hand_back = hand_back
        # Re-entrant: the collector may destroy a model's objects while it is held, and their code may come here.
        self._guard = threading.RLock()
        self._reading = False
        self._sleeping: List[Waiter] = []
        self._main = Waiter()
        self.work: Deque[Work] = deque()
        """Messages that the main thread has not taken yet. Work that must not wait is taken from its end, by any
        thread."""
        self._unwatched = 0
        self._wanted = False
        self._missed = False
        self.wake_attendant: Callable[[], None] = lambda: None
        """Called when a reader is needed and no thread waits."""
        self.is_ended = False
        """True if no more messages are expected: from now on the end of file is not an accident."""
        self.on_broken: Callable[[], None] = lambda: os._exit(1)
        """Ends the stub, whose host and itself do not understand each other."""
        self.hands_back = True
        """False if the main thread never runs a model's code for long, so that work may wait for it."""
        self._last_returned = -1
        self.is_idle = False
        """True while the main thread waits for work."""

    # The main thread

    def take_work(self) -> "Optional[Work]":
        """Return the main thread's next message; if there is none, the thread counts as idle from now on."""
        work = self.work
        if work and not self.is_idle:
            try:
                return work.popleft()
            except IndexError:  # another thread has handed it back
                pass
        with self._guard:
            self.is_idle = not work
            if self.is_idle:
                return None
            self._wanted |= self._missed
            self._missed = False
            if not self._reading:
                self._find_reader()
            return work.popleft()

    def next_work(self) -> Work:
        """Wait for the main thread's next message."""
        while True:
            work = self.take_work()
            if work is not None:
                return work
            if self._begin_reading(self._main):
                try:
                    while not self.work:
                        self._read()
                finally:
                    self._end_reading(goes_on=True)
            else:
                self._main.sleep()

    # Any thread

    def wait(self, waiter: Waiter) -> None:
        """Return once ``waiter.done`` is set; this thread may read meanwhile."""
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
        """End the wait of ``waiter``: its message has come."""
        with self._guard:
            waiter.done = True
            self._wake(waiter)

    def poll(self) -> None:
        """Handle messages that have arrived, unless another thread is reading."""
        if not self._begin_reading(None):
            return
        try:
            while self._channel.has_input():
                self._read()
        finally:
            self._end_reading()

    # Messages that no thread waits for

    def expect(self) -> None:
        """Announce a message that no thread will wait for."""
        with self._guard:
            self._unwatched += 1
            if not self._reading:
                self.wake_attendant()

    def expected_came(self) -> None:
        """Note the arrival of a message announced by :meth:`expect`."""
        with self._guard:
            self._unwatched -= 1

    def return_work(self) -> None:
        """Hand back executions that arrived together with the running one, which waits or takes long."""
        if not self.work:
            return
        with self._guard:
            if self.is_idle or not self.hands_back:  # the main thread is about to take it
                return
            handed_back = self.withdraw()
        if handed_back:
            self._hand_back(handed_back)

    def withdraw(self, *begun: int) -> "List[int]":
        """Drop the executions that wait, after one that the main thread has taken; returns all, to be handed back."""
        handed_back: Deque[int] = deque()
        with self._guard:
            kept: Deque[Work] = deque()
            with suppress(IndexError):  # the main thread may take the last one
                while self.work:
                    work = self.work.pop()
                    if type(work[0]) is list:
                        handed_back.appendleft(work[0][1])
                    else:
                        kept.appendleft(work)
            self.work.extend(kept)
            handed_back.extendleft(begun)
            if handed_back:
                self._last_returned = handed_back[-1]
        return list(handed_back)

    def attend(self, nudged: bool) -> None:
        """Read as long as the main thread is busy; work that should not wait for it goes back to the host.

        Args:
            nudged: whether the host nudged, in which case it has sent something before.
        """
        self.return_work()
        with self._guard:
            is_idle = self.is_idle
            if is_idle:
                # The main thread reads. It stops at its next work, and the host's message may come after that.
                self._missed |= nudged
                return
        while not self.is_idle and self._begin_reading(None, wanted=True):
            try:
                self._read()
            finally:
                self._end_reading(goes_on=True)

    # Reading

    def _begin_reading(self, waiter: "Optional[Waiter]", wanted: bool = False) -> bool:
        """True if this thread reads now; otherwise ``waiter`` is woken when it is done or a reader is missing."""
        with self._guard:
            if not self._reading:
                self._reading = True
                if wanted or waiter is self._main:  # other threads stop at their message even if more follow
                    self._wanted = False
                return True
            self._wanted |= wanted
            if waiter is not None and not waiter.done and not (waiter is self._main and self.work):
                self._sleeping.append(waiter)
            elif waiter is self._main:
                waiter.wake()  # work arrived between two checks
            return False

    def _end_reading(self, goes_on: bool = False) -> None:
        with self._guard:
            self._reading = False
            if self._main in self._sleeping:
                self._wake(self._main)
            elif not goes_on:  # otherwise this thread or the main thread continues, or finds another reader
                self._find_reader()

    def _find_reader(self) -> None:
        """Wake another thread to read, if anything is expected."""
        if self._sleeping:
            self._wake(self._sleeping[-1])
        elif self._unwatched or self._wanted:
            self.wake_attendant()

    def _wake(self, waiter: Waiter) -> None:
        if waiter in self._sleeping:
            self._sleeping.remove(waiter)
            waiter.wake()

    def _read(self) -> None:
        try:
            messages, tail = self._channel.receive()
            work: List[Work] = []
            for message in messages:
                if type(message) is list or isinstance(message, _WORK):
                    work.append((message, tail))
                    continue
                if work and type(message) is Reply and message.final and not self.is_idle:
                    # The main thread goes on with this answer. It may call again at once, and hand back what follows.
                    self._accept(work, goes_on=True)
                    work = []
                self._handle(message, tail)
            if work:
                self._accept(work)
        except HostGone:
            if not self.is_ended:
                # Exit at once: the model's threads or exit handlers could keep the process alive.
                os._exit(0)
            raise
        except BaseException:  # noqa: BLE001  the protocol is broken; the stub ends, whichever thread reads
            traceback.print_exc()
            self.on_broken()
            raise HostGone from None

    def _accept(self, work: "List[Work]", goes_on: bool = False) -> None:
        """Queue a frame's work for the main thread; executions that would have to wait for another one go back.

        Args:
            goes_on: the one that runs is about to go on with an answer that it waits for, and soon done.
        """
        handed_back: List[int] = []
        with self._guard:
            while len(handed_back) < len(work) and self._must_return(work[len(handed_back)][0], goes_on):
                handed_back.append(self._last_returned)
            if len(handed_back) < len(work):
                self.work.extend(work[len(handed_back) :])
                self._wake(self._main)
        if handed_back:
            self._hand_back(handed_back)

    def _must_return(self, message: Any, goes_on: bool) -> bool:
        """Whether an execution must go back; the one behind another that need not go back need not either."""
        if type(message) is not list or not self.hands_back:
            return False
        # One was sent before the host knew what was handed back, and must not overtake that.
        if (self.is_idle or goes_on) and message[1] != self._last_returned + 1:
            return False
        self._last_returned = message[1]
        return True


class Attendant:
    """A thread that acts while the main thread runs a model's code. It starts on first use and sleeps until woken.

    Args:
        nudges: the end of a pipe that the host writes to when it needs an answer, or to be heard, now.
    """

    def __init__(self, nudges: int, receiver: Receiver) -> None:
        self.on_nudge: Callable[[], None] = lambda: None
        self._nudges = nudges
        self._receiver = receiver
        self._started = False
        self._changing = threading.Lock()
        self._from_within = self._to_within = -1

    def start(self) -> None:
        """Heed nudges from now on."""
        if not self._started:
            self._started = True
            self._from_within, self._to_within = os.pipe()
            os.set_blocking(self._to_within, False)
            ServiceThread("pybackend-attendant", self._run).start()

    def wake(self) -> None:
        """Nudge the thread from within this process."""
        self.start()
        with self._changing, suppress(BlockingIOError):  # many nudges are still unread
            if self._to_within >= 0:
                os.write(self._to_within, NUDGE)

    def end(self) -> None:
        """Let go of the pipe: the host nudges no more. A thread that runs does so itself, at the end of the pipe."""
        if not self._started:
            os.close(self._nudges)

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (self._nudges, self._from_within):
            poll.register(descriptor, select.POLLIN)
        try:
            while True:
                nudges: Set[int] = set()
                ready = [descriptor for descriptor, _ in poll.poll()]
                for descriptor in ready:
                    found = os.read(descriptor, _NUDGES_BYTES)
                    if not found:
                        return  # the host is gone
                    nudges.update(found)
                self.on_nudge()
                if nudges != _ANSWERS_ONLY:
                    self._receiver.attend(nudged=self._nudges in ready)
        except HostGone:
            return  # a reading thread notices by itself
        finally:
            with self._changing:
                for descriptor in (self._nudges, self._from_within, self._to_within):
                    os.close(descriptor)
                self._to_within = -1
