"""The host's hold on a stub, a process or a part of one: its connections with the host, its exit cause, and how to kill it."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pybackend.environment.environment import Environment
from pybackend.errors import ErrorCode
from pybackend.ipc.segment import Segment
from pybackend.ipc.unwanted_descriptors import close, refuse_descriptors
from pybackend.observability.memory import own_memory_bytes
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
    nudges: int = -1
    output: int = -1


@dataclass(frozen=True)
class StubEnds:
    """The stub's ends: descriptors, which the host closes once they are handed over."""

    socket: int
    nudges: int
    output: int = -1


@contextmanager
def control_ends() -> Iterator[tuple[HostEnds, StubEnds]]:
    """Make both ends but those of output, for the length of a ``with`` block that hands the stub's over.

    The host's stay open if it succeeds.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        our_end, their_end = socket_ends(ours, theirs)
        # No shared counter such as an eventfd: the stub could fill it and so block the host's write.
        their_nudges, our_nudges = os.pipe()
        ours.callback(os.close, our_nudges)
        theirs.callback(os.close, their_nudges)
        os.set_blocking(our_nudges, False)
        yield HostEnds(our_end, our_nudges), StubEnds(their_end.fileno(), their_nudges)
        ours.pop_all()


@contextmanager
def connected_ends() -> Iterator[tuple[HostEnds, StubEnds]]:
    """Make both ends of all connections of a process; otherwise as :func:`control_ends`."""
    with control_ends() as (our_ends, their_ends), ExitStack() as theirs, ExitStack() as ours:
        our_output, their_output = output_pipe()
        ours.callback(os.close, our_output)
        theirs.callback(os.close, their_output)
        yield replace(our_ends, output=our_output), replace(their_ends, output=their_output)
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


class StubHandle(ABC):
    """The process of one model, or its part of one.

    Args:
        ends: the host's ends of its connections; all but the socket are closed when it ends.
        process: the process that the server has started for it; None for a part of another program.
        output: what that process prints; None if it is not the server's.
        report: report of the program that confined it; None if there is none.

    Attributes:
        has_finished: it has said its last word, and ends by itself.
        stacks: where its process writes its stacks, if its instances do not say.
        neighbours: the stubs in its process by the names of their instances, this one included; None if it is alone
            there.
    """

    def __init__(
        self, ends: HostEnds, pid: int, process: Process | None, output: OutputPipe | None, report: SandboxReport | None
    ) -> None:
        self.socket = ends.socket
        self.pid = pid
        self.sandbox_report = report
        self.has_finished = False
        self.stacks: Segment | None = None
        self.neighbours: dict[str, Any] | None = None
        self._nudges = ends.nudges
        self._started = process
        self._output = output
        self._on_exit: Callable[[], None] | None = None

    @abstractmethod
    def on_exit(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
        """Call ``on_exit`` once, on the loop, after it has ended."""

    @property
    @abstractmethod
    def exit_cause(self) -> str:
        """How it ended, as a clause; empty while it runs."""

    @property
    @abstractmethod
    def is_exiting(self) -> bool:
        """Whether it no longer runs any code of the stub, even if its end cannot be waited for yet."""

    @abstractmethod
    def kill(self, cause: str = "") -> None:
        """End it now, with what it has started; ``cause`` is the exit cause for all that live in its process."""

    @abstractmethod
    def discard(self) -> None:
        """End one that was never used, and forget it."""

    def nudge(self, nudge: bytes = NUDGE) -> None:
        """Ask a busy stub to be heard, or only for the answers that it has kept."""
        if self._nudges >= 0:
            with suppress(BlockingIOError, BrokenPipeError):  # it has enough unread nudges, or is gone
                os.write(self._nudges, nudge)

    def ask_for_stacks(self) -> None:
        """Have it write where its threads are, unless its signals are another program's.

        See :mod:`pybackend.instance.stacks`.
        """
        if self._started is not None and self._started.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGURG)

    def read_output(self) -> None:
        """Write the process's output so far to the log, before the host logs something about it."""
        if self._output is not None:
            self._output.read_now()

    @property
    def own_memory_bytes(self) -> int:
        """The memory of its process; 0 if that is another program's, or gone."""
        return 0 if self._started is None else own_memory_bytes(self.pid)

    @property
    def is_shared(self) -> bool:
        """True if other models live in its process."""
        return self.neighbours is not None

    @property
    def last_lines(self) -> list[str]:
        """The end of the process's output."""
        return [] if self._output is None else self._output.output.tail

    def _close_nudges(self) -> None:
        if self._nudges >= 0:
            os.close(self._nudges)
            self._nudges = -1

    def _tell_exit(self) -> None:
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            on_exit()


class StubPart(StubHandle):
    """A model's part of a process: nothing but its socket tells of its end."""

    def on_exit(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
        self._on_exit = on_exit

    @abstractmethod
    def on_hung_up(self) -> None:
        """The stub has closed its socket."""


class StubProcess(StubHandle):
    """A started stub, with the host's ends of its socket and of its output pipe.

    Args:
        on_end: called once, when the process has ended and was reaped.
    """

    def __init__(
        self, process: Process, ends: HostEnds, on_end: Callable[[], None], report: SandboxReport | None = None
    ) -> None:
        self.process = process
        self.output = OutputPipe(ends.output, process.pid)
        super().__init__(ends, process.pid, process, self.output, report)
        self._on_end = on_end
        self._killed_for = ""
        self._pidfd: int | None = None

    def on_exit(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
        self._on_exit = on_exit
        self._loop = loop
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._exited)
        self.output.start(loop)

    def send_output_to(self, output: ModelOutput) -> None:
        """Name the instance that this process will be, before :meth:`on_exit`; this includes its output so far."""
        self.output.output = output

    def _exited(self) -> None:
        self._unwatch()
        with ExitStack() as end:  # from the last to the first, and all of them, even if one raises
            end.callback(self._tell_exit)
            end.callback(self.output.finish)
            end.callback(self._on_end)
            end.callback(self._kill_group)
            end.callback(self._close_nudges)
            self.process.wait()

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    @property
    def exit_cause(self) -> str:
        status = self.process.poll()
        if status is None:
            return ""
        if self._killed_for:
            return self._killed_for
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
        # The kernel closes a dying process's socket before it notifies the parent.
        return self.process.poll() is not None or is_dying(self.pid)

    def _close_nudges(self) -> None:
        super()._close_nudges()
        if self.sandbox_report is not None:
            self.sandbox_report.end()

    def kill(self, cause: str = "") -> None:
        """Kill the process and everything it started in its session, now."""
        if self.process.poll() is None:
            self._killed_for = self._killed_for or ("" if is_dying(self.pid) else cause)
            self._kill_group()
            self.process.kill()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def discard(self) -> None:
        self.kill()
        self._unwatch()
        self._close_nudges()
        close(self.socket)
        self.process.wait()
        self._on_end()
        self.output.finish()


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
    # finds a place in a process: of a group, which it starts if there is none, or of the caller; None for a separate
    # process
    seat: Callable[[Start], Awaitable[StubHandle]] | None = None
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
