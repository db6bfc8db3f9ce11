"""One operating-system process that runs a stub: starting it, learning how it ended, ending it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from pybackend.environment.environment import HOST_ENVIRONMENT, Environment
from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.instance.affinity import pin
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.output_pipe import OutputPipe

_SOCKET_BUFFER_BYTES = 1024 * 1024
"""Room for a turn's frame, so that the host rarely has to keep a rest."""

_OUTPUT_BUFFER_BYTES = 256 * 1024
"""What a model can print while the host is busy. More would soon use up what one user's pipes may take together, 64 MB, and
then all of them shrink."""

_LEFT_OUT = ("LD_PRELOAD", "LD_AUDIT")

_ONE_NUDGE = (1).to_bytes(8, sys.byteorder)
"""What is written to an eventfd to count one more."""

_STAT_FLAGS, _PF_EXITING = 6, 0x4
"""Where /proc/<pid>/stat has the kernel's flags, counted from behind the name, and the one for a dying process."""


class StubProcess:
    """A started stub, the host's end of its socket, and of the pipe that it prints into."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, nudges: int, output: int) -> None:
        self._process = process
        self._nudges = nudges
        self._output = OutputPipe(output, process.pid)
        self.socket = sock
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
        self._output.finish()


class StubLauncher:
    """Starts stubs from one bundle.

    Stubs are alike until they are told which model to load, so they can be started ahead of time: while the host still
    reads configurations and imports its own packages, they already import numpy.
    """

    def __init__(self, bundle: Path, own: Environment = HOST_ENVIRONMENT) -> None:
        self._bundle = bundle
        self._own = own
        self._spare: list[StubProcess] = []

    def start_ahead(self, count: int) -> None:
        """Start stubs that the next calls of :meth:`start` will hand out."""
        for _ in range(count):
            self._spare.append(self._spawn(self._own))

    def start(self, environment: Environment | None = None, cores: Collection[int] = ()) -> StubProcess:
        """A stub that has said nothing yet.

        Args:
            environment: the Python to run it with; the host's own if None.
            cores: where it may run; everywhere if there are none.

        Raises:
            ModelLoadError: the process cannot be started.
        """
        spare = self._take_spare() if environment is None else None
        stub = spare or self._spawn(environment or self._own)
        if cores:
            pin(stub.pid, cores)
        return stub

    def _take_spare(self) -> StubProcess | None:
        while self._spare:
            stub = self._spare.pop(0)
            if not stub.exit_cause:
                return stub
            stub.discard()
        return None

    def close(self) -> None:
        """End the stubs that nobody asked for."""
        for stub in self._spare:
            stub.discard()
        self._spare.clear()

    def _spawn(self, environment: Environment) -> StubProcess:
        with ExitStack() as theirs, ExitStack() as ours:
            try:
                our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                ours.enter_context(our_end)
                theirs.enter_context(their_end)
                nudges = os.eventfd(0, os.EFD_CLOEXEC)
                ours.callback(os.close, nudges)
                our_output, their_output = _output_pipe()
                ours.callback(os.close, our_output)
                theirs.callback(os.close, their_output)
                for end in (our_end, their_end):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
                our_end.setblocking(False)
                process = self._execute(environment, [their_end.fileno(), nudges], their_output)
            except OSError as error:
                raise ModelLoadError(
                    f"cannot start a model process with {environment.python}: {error.strerror}", ErrorCode.UNAVAILABLE
                ) from error
            ours.pop_all()
        return StubProcess(process, our_end, nudges, our_output)

    def _execute(self, environment: Environment, inherited: list[int], output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(environment.python), "-I", "-B", str(self._bundle), *map(str, inherited), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=inherited,
            env={**stub_environment(os.environ), **environment.variables},
            start_new_session=True,
        )


def _output_pipe() -> tuple[int, int]:
    ours, theirs = os.pipe()
    with suppress(OSError):  # this user has many pipes: then a model waits for the host a little sooner
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _OUTPUT_BUFFER_BYTES)
    return ours, theirs


def stub_environment(host: Mapping[str, str]) -> dict[str, str]:
    """The host's environment less what would change which code the stub's Python runs."""
    return {name: value for name, value in host.items() if not name.startswith("PYTHON") and name not in _LEFT_OUT}
