"""Processes that are children of this one but were started by another."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_PARENT = 1
"""Position of the parent in /proc/<pid>/stat, counted from the end of the name."""


class Process(Protocol):
    """The interface to a stub's process, as in :class:`subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Wait for its end."""

    def kill(self) -> None:
        """Kill it if it runs."""


class AdoptedProcess:
    """A process made by a zygote and adopted by this process.

    Raises:
        ProcessLookupError: this process has no such child.
    """

    def __init__(self, pid: int) -> None:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError as error:
            raise ProcessLookupError(pid) from error
        if int(fields[_PARENT]) != os.getpid():
            raise ProcessLookupError(pid)
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end."""
        status = self._wait(0)
        assert status is not None
        return status

    def kill(self) -> None:
        """Kill it if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # other code in this process has waited for all children
                self._status = 0
            else:
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
        return self._status
