"""Servers and commands that are forked from a process with the server's modules, one for each process of pytest.

A server's start takes more than a second of CPU time, nearly all of it for imports, and hundreds of tests need a server
of their own. One of these starts as ``python -m pybackend`` does, but for the imports: the same arguments, environment,
directory, entry point, streams and exit status. Tests of starts, ends and processes start the command itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_PROGRAM = Path(__file__).with_name("warm_program.py")
_CHANGES_WITH_EACH_TEST = "PYTEST_CURRENT_TEST"
_READ_AT_ITS_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "OPENBLAS_", "OMP_", "MKL_")
"""Variables, by their beginnings, that an interpreter and its libraries read once: a fork would come too late for them.
"""
_END_S = 60


class WarmProcess:
    """A process that was forked: as much of ``subprocess.Popen`` as tests of servers use.

    Attributes:
        pid: its number.
        stdout: the end of a pipe to read what it writes to stdout and stderr, if these are not given.
    """

    def __init__(self, forker: _Forker, request: Sequence[object], outputs: tuple[int, int] | None = None) -> None:
        self._forker = forker
        self._ended: int | None = None
        self._ending = threading.Lock()
        self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stdout: IO[bytes] | None = None
        with theirs:
            if outputs is None:
                reading, writing = os.pipe()
                self.stdout = open(reading, "rb", buffering=0)  # noqa: SIM115  closed by ServerProcess
                forker.request(request, writing, writing, theirs.fileno())
                os.close(writing)
            else:
                forker.request(request, *outputs, theirs.fileno())
        self._descriptor = self._reports.fileno()
        weakref.finalize(self, self._reports.close)
        self.pid = int(self._reports.recv(32))

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the number of the signal that ended it; None while it runs."""
        return self._status(0)

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("pybackend", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout_s: float | None) -> int | None:
        if self._ended is None:
            arrival = select.poll()
            arrival.register(self._descriptor, select.POLLIN)
            if not arrival.poll(None if timeout_s is None else timeout_s * 1000):
                return None
            with self._ending:  # any thread may ask
                if self._ended is None:
                    report = self._reports.recv(32)
                    assert report, "the process that watched the server was killed"
                    status, cpu_s = report.split()
                    self._ended = int(status)
                    self._forker.ended_cpu_s += float(cpu_s)
                    self._reports.close()
        return self._ended


@dataclass(frozen=True)
class _Place:
    """What a process inherits, as far as tests change it."""

    environment: Mapping[str, str]
    directory: Path

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None, directory: str | Path | None = None) -> _Place:
        """This process's own, but for what is given."""
        variables = {**(os.environ if environment is None else environment)}
        variables.pop(_CHANGES_WITH_EACH_TEST, None)
        return cls(variables, Path.cwd() if directory is None else Path(directory))

    def can_be_entered_from(self, other: _Place) -> bool:
        """True if a process there may become one here, although it has read its environment."""
        differing = {name for name, _ in self.environment.items() ^ other.environment.items()}
        return not any(name.startswith(_READ_AT_ITS_START) for name in differing)

    def request(self, arguments: Sequence[str], limits: Mapping[str, float]) -> list[object]:
        """What is asked of the process that forks."""
        return [arguments, dict(self.environment), str(self.directory), dict(limits)]


class _Forker:
    """The process that has the modules.

    Attributes:
        ended_cpu_s: CPU seconds of the processes whose end was heard of, with those that these waited for.
    """

    def __init__(self, place: _Place) -> None:
        self.ended_cpu_s = 0.0
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=place.environment,
                cwd=place.directory,
            )

    def request(self, request: Sequence[object], stdout: int, stderr: int, reports: int) -> None:
        socket.send_fds(self._requests, [json.dumps(request).encode()], [stdout, stderr, reports])

    def cpu_s(self) -> float:
        """What it has taken so far, with those of its processes whose end was heard of."""
        own = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, own)) / os.sysconf("SC_CLK_TCK") + self.ended_cpu_s

    def end(self) -> None:
        """End it, which it does when all that it has forked have ended."""
        self._requests.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError("tests left servers behind that still run") from None


_forkers: list[_Forker] = []
_places: list[_Place | None] = [None]


def warm_process(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    limits: Mapping[str, float] | None = None,
) -> WarmProcess | None:
    """``python -m pybackend ARGUMENTS``, forked; ``env`` and ``cwd`` as of ``subprocess.Popen``.

    Args:
        arguments: of the command line.
        env: its environment, if not this process's.
        cwd: its working directory, if not this process's.
        limits: other values of constants, by their full names: what a server waits seconds for, a test need not.

    Returns:
        None where processes are not to be forked, or where that would not be the same: the environment has variables
            that
        are read before anything else.
    """
    place = _Place.of(env, cwd)
    forker = _forker_for(place)
    return None if forker is None else WarmProcess(forker, place.request(arguments, limits or {}))


def run_command(
    *arguments: str,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run ``pybackend ARGUMENTS`` to its end, forked if that is the same; all options are those of ``subprocess.run``."""
    command = ["pybackend", *arguments]
    place = _Place.of(env, cwd)
    forker = None if options else _forker_for(place)
    if forker is None:
        return subprocess.run(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout, env=env, cwd=cwd,
            **options,
        )  # fmt: skip
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = WarmProcess(forker, place.request(arguments, {}), (stdout.fileno(), stderr.fileno()))
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(command, status, stdout.read().decode(), stderr.read().decode())


def _forker_for(place: _Place) -> _Forker | None:
    """The process whose forks can be there, if there may be one."""
    origin = _places[-1]
    if origin is None or not place.can_be_entered_from(origin):
        return None
    if not _forkers:
        _forkers.append(_Forker(origin))
    return _forkers[0]


@contextmanager
def starts(*, warm: bool) -> Iterator[None]:
    """While this lasts, servers are forked; or each starts from the command line, as it does outside of tests."""
    _places.append(_Place.of() if warm else None)
    try:
        yield
    finally:
        _places.pop()


def forked_cpu_s() -> float:
    """CPU seconds of the process that forks servers, and of the servers that have ended."""
    return sum(forker.cpu_s() for forker in _forkers)


def end_forker() -> None:
    """To be called after the last test; fails if a server has not ended."""
    while _forkers:
        _forkers.pop().end()
