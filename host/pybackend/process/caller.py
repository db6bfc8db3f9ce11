"""The program beside this server whose functions it serves: each instance of a model is a thread of that program.

Towards its instance such a thread is a stub process like any other, with three differences: the server has not started it, does not
confine it, and cannot end it. It can only close the connection, which ends the thread once the function has returned.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.ipc.segment import Segment
from pybackend.ipc.unwanted_descriptors import close
from pybackend.observability.model_output import ModelOutput
from pybackend.process.start import SandboxReport
from pybackend.process.stub_process import Start, is_dying, socket_ends
from pybackend_wire.caller import LOAD, LOADED, MOST_BYTES, READY, RUN, message_in, packet
from pybackend_wire.messages import NUDGE

log = logging.getLogger(__name__)


class CallerThread:
    """One thread of the caller; see :class:`~pybackend.process.stub_process.StubProcess`."""

    is_shared = False
    stacks: Segment | None = None
    sandbox_report: SandboxReport | None = None

    def __init__(self, caller: Caller, sock: socket.socket, nudges: int) -> None:
        self.socket = sock
        self.pid = caller.pid
        self.last_lines: list[str] = []  # what the program prints is its own
        self._caller = caller
        self._nudges = nudges
        self._on_exit: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()

    def on_exit(self, _loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
        """Call ``on_exit`` once, on the loop, after the connection has ended."""
        self._on_exit = on_exit

    @property
    def exit_cause(self) -> str:
        """How it ended, as a clause; empty while it lives."""
        if not self.is_exiting:
            return ""
        return (
            f"{self.pid}, whose function this is, {'has ended' if is_dying(self.pid) else 'has closed the connection'}"
        )

    @property
    def is_exiting(self) -> bool:
        return self._nudges < 0

    def nudge(self, nudge: bytes = NUDGE) -> None:
        if self._nudges >= 0:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._nudges, nudge)

    def on_hung_up(self) -> None:
        """The thread has ended, or its program."""
        self._end()

    def kill(self) -> None:
        """Let go of the thread, which ends once its function has returned."""
        if not self.is_exiting:
            log.warning(
                "a function of process %d is given up. Its thread ends when it returns: it cannot be killed", self.pid
            )
        self._end()

    def discard(self) -> None:
        """Let go of a thread that was never used."""
        self._end()
        close(self.socket)

    def _end(self) -> None:
        if self._nudges >= 0:
            os.close(self._nudges)
            self._nudges = -1
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # a function that hangs may keep the other end open
            self._loop.call_soon(self._exited)

    def _exited(self) -> None:
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            on_exit()

    # Of processes only

    def send_output_to(self, output: ModelOutput) -> None:
        """Do nothing: what the program prints is its own."""

    def read_output(self) -> None:
        """Do nothing, likewise."""

    def ask_for_stacks(self) -> None:
        """Do nothing: the program's signals are its own."""

    def answer_to(self, instance_name: str, instance: Any) -> None:
        """Nobody else uses the connection."""

    def neighbour(self, instance_name: str) -> None:
        """There is no other instance."""

    def expect_end(self) -> None:
        """The thread has said its last word, and closes the connection."""


class Caller:
    """The connection with the program. Its process must be this one's parent.

    Args:
        descriptor: this end of the socket for :mod:`pybackend_wire.caller`.
        repository: the models in this directory are its functions; others have code.
    """

    def __init__(self, descriptor: int, repository: Path) -> None:
        self.pid = os.getppid()
        self._repository = repository
        self.has_ended = False
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        os.set_inheritable(descriptor, False)
        self._pidfd = -1
        self._load: Callable[[str], Awaitable[None]] | None = None
        self._loads: set[asyncio.Task[None]] = set()

    def has(self, model: Path) -> bool:
        """Whether the model with this directory is one of its functions."""
        return model.parent == self._repository

    def attend(self, on_end: Callable[[], None]) -> None:
        """Notice the program's end from now on, on the running loop; ``on_end`` is called once."""
        loop = asyncio.get_running_loop()
        log.info("Functions of process %d are models, and run there: the sandbox does not confine them.", self.pid)

        def ended() -> None:
            if self.has_ended:
                return
            self.has_ended = True
            loop.remove_reader(self._socket)
            if self._pidfd >= 0:
                loop.remove_reader(self._pidfd)
                os.close(self._pidfd)
            on_end()

        def read() -> None:
            try:
                data = self._socket.recv(MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._take(data)
            else:
                ended()

        loop.add_reader(self._socket, read)
        try:
            # A process that the program has forked may still hold the socket.
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            loop.call_soon(ended)
            return
        loop.add_reader(self._pidfd, ended)
        if os.getppid() != self.pid:
            loop.call_soon(ended)

    def serve(self, load: Callable[[str], Awaitable[None]], **addresses: str) -> None:
        """Say that the server is ready; ``load`` loads a model from now on, and raises an error that says why it cannot."""
        self._load = load
        self.say(READY, **addresses)

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message, unless the program is gone."""
        with suppress(OSError):
            self._socket.send(packet(kind, **fields))

    def _take(self, data: bytes) -> None:
        kind, fields = message_in(data)
        assert kind == LOAD
        task = asyncio.create_task(self._load_one(fields["model"]))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def _load_one(self, model: str) -> None:
        assert self._load is not None  # the program waits for READY
        error = ""
        try:
            await self._load(model)
        except Exception as failure:  # noqa: BLE001  the program waits for an answer to any failure
            error = str(failure)
        self.say(LOADED, model=model, error=error)

    async def run(self, model: str, number: int, _start: Start) -> CallerThread:
        """Have the program run an instance of a model. Raises OSError: it cannot be told."""
        with ExitStack() as ours, ExitStack() as theirs:
            our_end, their_end = socket_ends(ours, theirs)
            their_nudges, our_nudges = os.pipe()
            ours.callback(os.close, our_nudges)
            theirs.callback(os.close, their_nudges)
            os.set_blocking(our_nudges, False)
            try:
                data = packet(RUN, model=model, number=number)
                socket.send_fds(self._socket, [data], [their_end.fileno(), their_nudges])
            except (BrokenPipeError, ConnectionError):
                raise ModelLoadError(
                    f"process {self.pid}, whose function model '{model}' is, has ended", ErrorCode.UNAVAILABLE
                ) from None
            ours.pop_all()
        return CallerThread(self, our_end, our_nudges)
