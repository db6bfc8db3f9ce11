"""One operating-system process that runs a stub: its connections with the host, its exit cause, and how to kill it."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pybackend.environment.environment import Environment
from pybackend.errors import ErrorCode
from pybackend.ipc.segment import Segment
from pybackend.ipc.unwanted_descriptors import close, refuse_descriptors
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.output_pipe import OutputPipe
from pybackend.process.start import SandboxReport
from pybackend.sandbox.model_sandbox import InstanceSandbox
from pybackend.sandbox.trust_domain import TrustDomain
from pybackend_wire.confinement import Confinement
from pybackend_wire.messages import NUDGE

_PARENT = 1
"""Position of the parent in /proc/<pid>/stat, counted from the end of the name."""


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
        status = self._wait(0)
        assert status is not None
        return status

    def kill(self) -> None:
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


Process = subprocess.Popen[bytes] | AdoptedProcess

_SOCKET_BUFFER_BYTES = 1024 * 1024
"""Room for a turn's frame, so that the host rarely has to keep a remainder."""

_OUTPUT_BUFFER_BYTES = 256 * 1024
"""Room for a model's output while the host is busy. With more, a user's pipes would soon reach their common limit, 64
MB, and all of them would shrink."""


@dataclass(frozen=True)
class HostEnds:
    """The host's ends; their owner closes them."""

    socket: socket.socket
    nudges: int
    output: int


@dataclass(frozen=True)
class StubEnds:
    """The stub's ends: descriptors, which the host closes once they are handed over."""

    socket: int
    nudges: int
    output: int


@contextmanager
def connected_ends() -> Iterator[tuple[HostEnds, StubEnds]]:
    """Make both ends, for the length of a ``with`` block that starts a stub; the host's stay open if it succeeds."""
    with ExitStack() as theirs, ExitStack() as ours:
        our_end, their_end = socket_ends(ours, theirs)
        # No shared counter such as an eventfd: the stub could fill it and so block the host's write.
        their_nudges, our_nudges = os.pipe()
        ours.callback(os.close, our_nudges)
        theirs.callback(os.close, their_nudges)
        os.set_blocking(our_nudges, False)
        our_output, their_output = output_pipe()
        ours.callback(os.close, our_output)
        theirs.callback(os.close, their_output)
        yield HostEnds(our_end, our_nudges, our_output), StubEnds(their_end.fileno(), their_nudges, their_output)
        ours.pop_all()


def socket_ends(ours: ExitStack, theirs: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Make the host's and the stub's end of a control socket, which these stacks close."""
    our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.enter_context(our_end)
    theirs.enter_context(their_end)
    refuse_descriptors(our_end)
    for end in (our_end, their_end):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    our_end.setblocking(False)
    return our_end, their_end


def output_pipe() -> tuple[int, int]:
    """Make a pipe for a process's output; returns the end to read from, and the other one."""
    ours, theirs = os.pipe()
    with suppress(OSError):  # this user has many pipes; then a model waits for the host a little sooner
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _OUTPUT_BUFFER_BYTES)
    return ours, theirs


_STAT_FLAGS, _PF_EXITING = 6, 0x4
"""Position of the kernel's flags in /proc/<pid>/stat, counted from the name's end, and the flag of a dying process."""


def is_dying(pid: int) -> bool:
    """Whether a process runs no more code."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return True
    return bool(int(fields[_STAT_FLAGS]) & _PF_EXITING)


class StubProcess:
    """A started stub, with the host's ends of its socket and of its output pipe.

    Args:
        ends: the host's ends of its connections; all but the socket are closed when the process ends.
        on_end: called once, when the process has ended and was reaped.
        report: report of the program that confined it; None if there is none.

    Attributes:
        is_shared: other models run in it, too.
        stacks: where it writes its stacks, if its instances do not say.
    """

    is_shared = False
    stacks: Segment | None = None

    def __init__(
        self, process: Process, ends: HostEnds, on_end: Callable[[], None], report: SandboxReport | None = None
    ) -> None:
        self.sandbox_report = report
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
        if self.sandbox_report is not None and self.sandbox_report.failure:
            return f"was not started: {self.sandbox_report.failure}"
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
        return self._process.poll() is not None or is_dying(self.pid)

    def nudge(self, nudge: bytes = NUDGE) -> None:
        """Ask a busy stub to be heard, or only for the answers that it has kept."""
        if self._nudges >= 0:
            with suppress(BlockingIOError, BrokenPipeError):  # it has enough unread nudges, or is gone
                os.write(self._nudges, nudge)

    @property
    def last_lines(self) -> list[str]:
        return self._output.output.tail

    def ask_for_stacks(self) -> None:
        """Have it write where its threads are; see :mod:`pybackend.instance.stacks`."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGURG)

    def answer_to(self, instance_name: str, instance: Any) -> None:
        """Nobody else is in the process."""

    def neighbour(self, instance_name: str) -> None:
        """There is no other instance in the process."""

    def expect_end(self) -> None:
        """The stub has said its last word: do nothing, its process ends."""

    def on_hung_up(self) -> None:
        """The stub has closed its socket: its process says more."""

    def _close_nudges(self) -> None:
        if self._nudges >= 0:
            os.close(self._nudges)
            self._nudges = -1
        if self.sandbox_report is not None:
            self.sandbox_report.end()

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


Start = Callable[[], Awaitable[StubProcess]]
"""Starts a process that has not been told yet what it will run."""


@dataclass(frozen=True)
class StubLaunch:
    """How to start a stub."""

    environment: Environment | None = None  # the Python to run it with; the host's own if None
    cores: Collection[int] = ()  # the cores that it may use; empty for all
    # the additional modules of the zygote that forks it; None if it must not be forked
    preload: tuple[str, ...] | None = ()
    variables: Mapping[str, str] = field(default_factory=dict)  # of its environment, besides those that it inherits
    # confines it, checks its confinement, and kills its leftovers; None for a stub that is not confined
    sandbox: InstanceSandbox | None = None
    # finds a place in a process: of a group, which it starts if there is none, or of the caller; None for a separate process
    seat: Callable[[Start], Awaitable[Any]] | None = None
    loss: ErrorCode = ErrorCode.INTERNAL  # the code of the error for requests that a dead stub leaves undone

    @property
    def confinement(self) -> Confinement | None:
        return None if self.sandbox is None else self.sandbox.confinement

    @property
    def domain(self) -> TrustDomain | None:
        """The models that share a zygote with this one; None if it shares none."""
        return None if self.sandbox is None else self.sandbox.domain

    def check_confined(self, pid: int, report: SandboxReport | None, said: Mapping[str, str]) -> None:
        """Check what a process has said about its sandbox; a report by the program that confined it counts more."""
        if self.sandbox is not None:
            self.sandbox.check(pid, said if report is None else report.layers, is_entered=report is not None)

    async def end_leftovers(self) -> None:
        if self.sandbox is not None and self.seat is None:  # a group does it, before it starts another process
            await self.sandbox.end_leftovers()
