"""The program beside this server whose functions it serves: each instance of a model is a thread of that program.

Towards its instance such a thread is a stub process like any other, with three differences: the server has not started
it, does not confine it, and cannot end it. It can only close the connection, which ends the thread once the function
has returned.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.ipc.unwanted_descriptors import close
from pybackend.process.stub_process import HostEnds, Start, StubPart, control_ends, is_dying
from pybackend_wire.caller import LOAD, LOADED, MOST_BYTES, READY, RUN, message_in, packet

log = logging.getLogger(__name__)


class CallerThread(StubPart):
    """One thread of the caller."""

    def __init__(self, caller: Caller, ends: HostEnds) -> None:
        super().__init__(ends, caller.pid, None, None, None)
        self._loop = asyncio.get_running_loop()

    @property
    def exit_cause(self) -> str:
        if not self.is_exiting:
            return ""
        return (
            f"{self.pid}, whose function this is, {'has ended' if is_dying(self.pid) else 'has closed the connection'}"
        )

    @property
    def is_exiting(self) -> bool:
        return self._nudges < 0

    def on_hung_up(self) -> None:
        """The thread has ended, or its program, or the server lets go of it."""
        if not self.is_exiting:
            self._close_nudges()
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # a function that hangs may keep the other end open
            self._loop.call_soon(self._tell_exit)

    def kill(self, cause: str = "") -> None:
        """Let go of the thread, which ends once its function has returned."""
        if not self.is_exiting:
            log.warning(
                "a function of process %d is given up. Its thread ends when it returns: it cannot be killed", self.pid
            )
        self.on_hung_up()

    def discard(self) -> None:
        self.on_hung_up()
        close(self.socket)


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
        with control_ends() as (ours, theirs):
            try:
                data = packet(RUN, model=model, number=number)
                socket.send_fds(self._socket, [data], [theirs.socket, theirs.nudges])
            except (BrokenPipeError, ConnectionError):
                raise ModelLoadError(
                    f"process {self.pid}, whose function model '{model}' is, has ended", ErrorCode.UNAVAILABLE
                ) from None
        return CallerThread(self, ours)
