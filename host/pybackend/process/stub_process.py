"""One operating-system process that runs a stub: its end, its exit cause, and how to kill it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from pybackend.ipc.unwanted_descriptors import close
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.output_pipe import OutputPipe
from pybackend.process.child_process import Process
from pybackend.process.start import Entry
from pybackend.process.stub_ends import HostEnds
from pybackend_wire.messages import NUDGE

_STAT_FLAGS, _PF_EXITING = 6, 0x4
"""Position of the kernel's flags in /proc/<pid>/stat, counted from the name's end, and the flag of a dying process."""


class StubProcess:
    """A started stub, with the host's ends of its socket and of its output pipe.

    Args:
        ends: the host's ends of its connections; all but the socket are closed when the process ends.
        on_end: called once, when the process has ended and was reaped.
        entry: report of the program that confined it; None if there is none.
    """

    def __init__(
        self, process: Process, ends: HostEnds, on_end: Callable[[], None], entry: Entry | None = None
    ) -> None:
        self.entry = entry
        self._process = process
        self._on_end = on_end
        self._nudges = ends.nudges
        self._output = OutputPipe(ends.output, process.pid)
        self.socket = ends.socket
        self.pid = process.pid
        self._pidfd: int | None = None
        self._on_exit: Callable[[], None] | None = None

    def on_exit(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
        """Call ``on_exit`` once, on the loop, after the process has ended."""
        self._on_exit = on_exit
        self._loop = loop
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._exited)
        self._output.start(loop)

    def send_output_to(self, output: ModelOutput) -> None:
        """Name the instance that this process will be, before :meth:`on_exit`; this includes its output so far."""
        self._output.output = output

    def read_output(self) -> None:
        """Write the process's output so far to the log, before the host logs something about it."""
        self._output.read_now()

    def _exited(self) -> None:
        self._unwatch()
        with ExitStack() as end:  # from the last to the first, and all of them, even if one raises
            if self._on_exit is not None:
                end.callback(self._on_exit)
                self._on_exit = None
            end.callback(self._output.finish)
            end.callback(self._on_end)
            end.callback(self._kill_group)
            end.callback(self._close_nudges)
            self._process.wait()

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    @property
    def exit_cause(self) -> str:
        """How the process ended, as a clause; empty while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        if self.entry is not None and self.entry.failure:
            return f"was not started: {self.entry.failure}"
        if status < 0:
            try:
                name = signal.Signals(-status).name
            except ValueError:
                name = "unknown"
            advice = ", which is also how the kernel ends a process when memory runs out" if status == -9 else ""
            return f"was killed by signal {-status} ({name}){advice}"
        return f"exited with status {status}"

    @property
    def is_exiting(self) -> bool:
        """Whether the process no longer runs any code of the stub, even if its end cannot be waited for yet.

        The kernel closes a dying process's socket before it notifies the parent.
        """
        if self._process.poll() is not None:
            return True
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return True
        return bool(int(fields[_STAT_FLAGS]) & _PF_EXITING)

    def nudge(self, nudge: bytes = NUDGE) -> None:
        """Ask a busy stub to be heard, or only for the answers that it has kept."""
        if self._nudges >= 0:
            with suppress(BlockingIOError, BrokenPipeError):  # it has enough unread nudges, or is gone
                os.write(self._nudges, nudge)

    @property
    def last_lines(self) -> list[str]:
        """The lines that it has printed last."""
        return self._output.output.tail

    def ask_for_stacks(self) -> None:
        """Have it write where its threads are; see :mod:`pybackend.instance.stacks`."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGURG)

    def _close_nudges(self) -> None:
        if self._nudges >= 0:
            os.close(self._nudges)
            self._nudges = -1
        if self.entry is not None:
            self.entry.end()

    def kill(self) -> None:
        """Kill the process and everything it started in its session, now."""
        if self._process.poll() is None:
            self._kill_group()
            self._process.kill()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def discard(self) -> None:
        """End an unused process and forget it."""
        self.kill()
        self._unwatch()
        self._close_nudges()
        close(self.socket)
        self._process.wait()
        self._on_end()
        self._output.finish()
