"""One operating-system process that runs a stub: learning how it ended, and ending it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pybackend.instance.child_process import Process
from pybackend.instance.stub_ends import HostEnds
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.output_pipe import OutputPipe

_ONE_NUDGE = (1).to_bytes(8, sys.byteorder)
"""What is written to an eventfd to count one more."""

_STAT_FLAGS, _PF_EXITING = 6, 0x4
"""Where /proc/<pid>/stat has the kernel's flags, counted from behind the name, and the one for a dying process."""


class StubProcess:
    """A started stub, the host's end of its socket, and of the pipe that it prints into.

    Args:
        process: which it is.
        ends: what connects the host with it; closed with the stub's end, but for the socket.
        on_end: called once when the process has ended and is waited for.
    """

    def __init__(self, process: Process, ends: HostEnds, on_end: Callable[[], None]) -> None:
        self._process = process
        self._on_end = on_end
        self._nudges = ends.nudges
        self._output = OutputPipe(ends.output, process.pid)
        self.socket = ends.socket
        self.pid = process.pid
        self._pidfd: int | None = None
        self._on_exit: Callable[[], None] | None = None

    def watch(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
        """Call ``on_exit`` once, on the loop, when the process has ended."""
        self._on_exit = on_exit
        self._loop = loop
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._exited)
        self._output.start(loop)

    def send_output_to(self, output: ModelOutput) -> None:
        """Say which instance this process is going to be, before :meth:`watch`; what it said so far counts too."""
        self._output.output = output

    def read_output(self) -> None:
        """Write what the process has said so far into the log, before the host says something about it."""
        self._output.read_now()

    def _exited(self) -> None:
        self._unwatch()
        self._process.wait()
        self._close_nudges()
        self._kill_group()
        self._on_end()
        self._output.finish()
        if self._on_exit is not None:
            self._on_exit()

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    @property
    def exit_cause(self) -> str:
        """How the process ended, as part of a sentence; empty while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
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
        """True if the process runs no code of its own any more, whether or not its end can be waited for yet.

        The kernel closes a dying process's socket before it tells the process's parent.
        """
        if self._process.poll() is not None:
            return True
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return True
        return bool(int(fields[_STAT_FLAGS]) & _PF_EXITING)

    def nudge(self) -> None:
        """Ask a stub that computes to send the answers that it has kept."""
        # The stub holds the same counter: one that has filled it to the brim must not make the host wait.
        if self._nudges >= 0:
            counter = select.poll()
            counter.register(self._nudges, select.POLLOUT)
            if counter.poll(0):
                os.write(self._nudges, _ONE_NUDGE)

    def _close_nudges(self) -> None:
        if self._nudges >= 0:
            os.close(self._nudges)
            self._nudges = -1

    def kill(self) -> None:
        """End the process and everything it started in its session, now."""
        if self._process.poll() is None:
            self._kill_group()
            self._process.kill()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def discard(self) -> None:
        """End a process that nobody has spoken with, and forget it."""
        self.kill()
        self._unwatch()
        self._close_nudges()
        self.socket.close()
        self._process.wait()
        self._on_end()
        self._output.finish()
