"""A child of this process that another one has started for it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_PARENT = 1
"""Where /proc/<pid>/stat has the parent, counted from behind the name."""


class Process(Protocol):
    """What a stub's owner needs of its process; as in :class:`subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Wait for its end."""

    def kill(self) -> None:
        """End it, if it runs."""


class AdoptedProcess:
    """A process that a zygote has made, whose parent this one has become.

    Raises:
        ProcessLookupError: no such process is a child of this one.
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
        """Its exit status, negative for a signal; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end."""
        status = self._wait(0)
        assert status is not None
        return status

    def kill(self) -> None:
        """End it, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # something in this process has waited for all children
                self._status = 0
            else:
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
        return self._status
