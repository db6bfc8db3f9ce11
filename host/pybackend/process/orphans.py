"""Leftover processes of models: found by a mark that every process inherits, and killed with their instance.

A process that leaves its session and outlives its parent becomes a child of the host, which is a subreaper. The mark
shows its owner: it is a resource limit that the kernel ignores, that processes inherit, and that none can raise without
privileges. If the server itself is killed, the kernel kills the stubs with it, and the warden kills what they started.
"""

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pybackend_wire.zygote import MARK

_PROGRAM = Path(__file__).with_name("warden_program.py")


class Warden:
    """The warden of this process."""

    def __init__(self, lowest: int, highest: int) -> None:
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_PROGRAM), *map(str, (reading, lowest, highest))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[reading],
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    @property
    def is_alive(self) -> bool:
        """False if something has killed it."""
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._writing)

    def finish(self) -> None:
        """Have it kill every marked process now, and wait for its end."""
        os.close(self._writing)
        self._process.wait()

    def leave_to_parent(self) -> None:
        """In a forked child: let go of the pipe, whose last holder's end is the host's."""
        os.close(self._writing)


_PR_SET_CHILD_SUBREAPER = 36

_HIGHEST_MARK = 1 << 62
_SPAN = 1 << 31
"""Number of marks per host. The upper half is for zygotes, whose forks bear lower ones."""

_LEAST_OWN = _SPAN << 8
"""Below this limit, which only another program could have set, there is no room for marks."""

_SWEEPS_S = (0.01, 0.05, 0.2)
"""Delays of further sweeps after an end: killed processes leave orphans themselves."""

_LAST_SWEEPS_S = 2.0


class Orphans:
    """Children that this process did not start itself. One per process, for servers only: it changes the process.

    Unless it ``adopts`` orphans, it changes nothing, and the warden kills what models leave behind when the server
    ends.
    """

    def __init__(self, *, adopts: bool = True) -> None:
        self._own = resource.getrlimit(MARK)[1]
        highest = _HIGHEST_MARK if self._own == resource.RLIM_INFINITY else min(self._own, _HIGHEST_MARK)
        self._marks_exist = highest >= _LEAST_OWN
        # the lowest of this host's marks
        self.base = highest // 2 + _below(highest // 2 - _SPAN) if self._marks_exist else 0
        self._living: dict[int, int] = {}
        self._warden: Warden | None = None
        self.adopts = (
            adopts and _become_subreaper()
        )  # False if the kernel does not make orphans children of this process

    def new_mark(self, *, of_zygote: bool = False) -> int:
        """Return a mark for a process that is about to start; 0 if there are none."""
        if not self._marks_exist:
            return 0
        while True:
            mark = self.base + _below(_SPAN // 2) + of_zygote * (_SPAN // 2)
            if mark not in self._living:
                self._living[mark] = 0
                return mark

    def know(self, mark: int, pid: int) -> None:
        """Note the process started with a mark; other code waits for its end."""
        if mark:
            self._living[mark] = pid
            # It will bear the mark by itself, but an environment's Python may run other code before.
            with suppress(OSError, ValueError):  # it has ended, or has changed its user already, and so bears the mark
                resource.prlimit(pid, MARK, (mark, mark))

    def end(self, mark: int) -> None:
        """Note the end of the process with this mark, and kill everything it has started."""
        if self._living.pop(mark, None) is None:
            return
        self.sweep()
        with suppress(RuntimeError):  # there is no running loop, yet or any more
            loop = asyncio.get_running_loop()
            for delay_s in _SWEEPS_S:
                loop.call_later(delay_s, self.sweep)

    def tend(self) -> None:
        """Sweep, and keep a warden running in case this process is killed; must be called about once a second."""
        if self._marks_exist and (self._warden is None or not self._warden.is_alive):
            self._end_warden()
            with suppress(OSError):  # no process can be started now
                self._warden = Warden(self.base, self.base + _SPAN)
        self.sweep()

    def leave_to_parent(self) -> None:
        """In a forked child of the host: these processes are the parent's."""
        if self._warden is not None:
            self._warden.leave_to_parent()

    def _end_warden(self) -> None:
        warden, self._warden = self._warden, None
        if warden is not None:
            warden.close()

    def sweep(self) -> int:
        """Kill processes without a living owner, reap ended ones; returns how many of the killed still run."""
        if not self.adopts or not self._marks_exist:
            return 0
        known = set(self._living.values())
        left = 0
        for pid in _children():
            mark = mark_of(pid)
            if pid in known or mark is None or mark == self._own:
                continue  # other code waits for its end, or it is not a model's
            owner = self._living.get(mark)
            if owner is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                left += not _reap(pid)
            elif owner and mark < self.base + _SPAN // 2:  # otherwise it is a new stub that is not registered yet
                _reap(pid)
        return left

    def sweep_all(self) -> None:
        """At the end of this process, kill everything marked, and wait for it."""
        self._living.clear()
        if not self.adopts and self._warden is not None and self._warden.is_alive:
            warden, self._warden = self._warden, None
            warden.finish()
        deadline_s = time.monotonic() + _LAST_SWEEPS_S
        while self.sweep() and time.monotonic() < deadline_s:
            time.sleep(0.002)
        self._end_warden()


def _below(bound: int) -> int:
    return int.from_bytes(os.urandom(8), "little") % bound


def _become_subreaper() -> bool:
    try:
        return int(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
    except AttributeError:  # not Linux
        return False


def _children() -> Iterator[int]:
    """List the children of this process's first thread, which adopts orphans."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:  # a kernel without that list
        return
    yield from map(int, text.split())


def _reap(pid: int) -> bool:
    """Reap a child; returns whether it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def mark_of(pid: int) -> int | None:
    """Return the mark that a process bears; None if there is no such process."""
    with suppress(OSError):
        return resource.prlimit(pid, MARK)[1]
    with suppress(OSError, StopIteration, ValueError):  # another user's process, and this one is unprivileged
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Max file locks")).split()[4])
    return None
