"""What models have started and left behind: found by a mark that every process inherits, killed with its instance.

A process that leaves its session and outlives its parent becomes the child of the host, which has asked for that. Whose it was
tells its mark: a limit that the kernel does not heed, that is inherited, and that nobody without privileges can raise.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pybackend.instance.warden import Warden
from pybackend_wire.zygote import MARK

_PR_SET_CHILD_SUBREAPER = 36

_HIGHEST_MARK = 1 << 62
_SPAN = 1 << 31
"""How many marks one host may give, the upper half of them to zygotes: what these fork bears a lower one."""

_LEAST_OWN = _SPAN << 8
"""With a limit below that, which some other program would have to have set, there is no room for marks."""

_SWEEPS_S = (0.01, 0.05, 0.2)
"""When it is looked again after an end: what is killed leaves orphans of its own."""

_LAST_SWEEPS_S = 2.0


class Orphans:
    """The children that this process did not start itself. One per process, and for servers only: it changes the process.

    Attributes:
        base: the lowest of this host's marks.
        adopts: False where the kernel does not make orphans children of this process.
    """

    def __init__(self) -> None:
        self._own = resource.getrlimit(MARK)[1]
        highest = _HIGHEST_MARK if self._own == resource.RLIM_INFINITY else min(self._own, _HIGHEST_MARK)
        self._marks_exist = highest >= _LEAST_OWN
        self.base = highest // 2 + _below(highest // 2 - _SPAN) if self._marks_exist else 0
        self._living: dict[int, int] = {}
        self._warden: Warden | None = None
        self.adopts = _become_subreaper()

    def new_mark(self, *, of_zygote: bool = False) -> int:
        """A mark for a process that is about to start; 0 if there are none."""
        if not self._marks_exist:
            return 0
        while True:
            mark = self.base + _below(_SPAN // 2) + of_zygote * (_SPAN // 2)
            if mark not in self._living:
                self._living[mark] = 0
                return mark

    def know(self, mark: int, pid: int) -> None:
        """The process that was started with a mark: somebody else waits for its end."""
        if mark:
            self._living[mark] = pid
            # It will bear it by itself, but the Python of an environment may run other code before.
            with suppress(OSError, ValueError):  # it has ended, or is another user already and has done so
                resource.prlimit(pid, MARK, (mark, mark))

    def end(self, mark: int) -> None:
        """The process with this mark has ended, and with it all that it has started."""
        if self._living.pop(mark, None) is None:
            return
        self.sweep()
        with suppress(RuntimeError):  # there is no loop yet, or no more
            loop = asyncio.get_running_loop()
            for delay_s in _SWEEPS_S:
                loop.call_later(delay_s, self.sweep)

    def tend(self) -> None:
        """To be called about once a second: see that somebody would look after orphans if this process was killed, and sweep."""
        if self._marks_exist and (self._warden is None or not self._warden.is_alive):
            self._end_warden()
            with suppress(OSError):  # there is no room for processes now
                self._warden = Warden(self.base, self.base + _SPAN)
        self.sweep()

    def _end_warden(self) -> None:
        warden, self._warden = self._warden, None
        if warden is not None:
            warden.close()

    def sweep(self) -> int:
        """Kill what belongs to nobody who lives, reap what has ended; returns how many of the former are still there."""
        if not self.adopts or not self._marks_exist:
            return 0
        known = set(self._living.values())
        left = 0
        for pid in _children():
            mark = mark_of(pid)
            if pid in known or mark is None or mark == self._own:
                continue  # its end is waited for elsewhere, or it is no model's
            owner = self._living.get(mark)
            if owner is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                left += not _reap(pid)
            elif owner and mark < self.base + _SPAN // 2:  # else it is a newborn stub that will be known
                _reap(pid)
        return left

    def sweep_all(self) -> None:
        """At the end of this process: all marks have ended, nothing is to stay. Waits for it."""
        self._living.clear()
        deadline_s = time.monotonic() + _LAST_SWEEPS_S
        while self.sweep() and time.monotonic() < deadline_s:
            time.sleep(0.002)
        self._end_warden()


def _below(bound: int) -> int:
    return int.from_bytes(os.urandom(8), "little") % bound


def _become_subreaper() -> bool:
    try:
        return int(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
    except AttributeError:  # no Linux
        return False


def _children() -> Iterator[int]:
    """Processes whose parent is this one's first thread, which is the one that orphans get."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:  # a kernel without that list
        return
    yield from map(int, text.split())


def _reap(pid: int) -> bool:
    """Whether a child is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def mark_of(pid: int) -> int | None:
    """The mark that a process bears; None if there is no such process."""
    with suppress(OSError):
        return resource.prlimit(pid, MARK)[1]
    with suppress(OSError, StopIteration, ValueError):  # another user's, and this one is not privileged
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Max file locks")).split()[4])
    return None
