"""One zygote, as the host sees it: a process that has imported what stubs need, and forks them on request."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess

from pybackend.instance.child_process import AdoptedProcess
from pybackend.instance.launch import StubLaunch
from pybackend.instance.orphans import mark_of
from pybackend.instance.stub_ends import StubEnds
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.output_pipe import OutputPipe
from pybackend.sandbox.verification import contradictions
from pybackend_wire.confinement import Confinement
from pybackend_wire.zygote import MOST_BYTES, Fork, Forked, packed

START_LIMIT_S = 60.0
"""How long it may take to import what it is to import."""

FORK_LIMIT_S = 10.0
"""How long a fork may take, which takes three milliseconds."""


class ZygoteError(Exception):
    """It cannot bring stubs to life; the text completes the sentence "It ..."."""


class Zygote:
    """A started zygote.

    Args:
        process: which it is; ended and waited for here.
        sock: the host's end of its socket.
        output: the end of the pipe into which it, and what it imports, prints.
        name: for its lines in the log.
        mark: that it bears, and its forks until they bear their own.
        confinement: that it has before it runs any code of its environment, None if nothing confines it.

    Attributes:
        is_gone: it can be asked no more.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        output: int,
        name: str,
        mark: int,
        confinement: Confinement | None = None,
    ) -> None:
        self.is_gone = False
        self._process = process
        self._mark = mark
        self._confinement = confinement
        self._socket = sock
        self._output = OutputPipe(output, process.pid)
        self._output.output = ModelOutput(name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._numbers = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def fork(self, launch: StubLaunch, ends: StubEnds, mark: int) -> AdoptedProcess:
        """A new process, child of this one, which has these ends.

        Raises:
            ZygoteError: there is none; the zygote is no good any more.
        """
        self.attend()
        await self._answered(0, START_LIMIT_S)
        self._check_confined()
        number = self._numbers = self._numbers + 1
        confinement = "" if launch.confinement is None else launch.confinement.to_json()
        packet = packed(Fork(number, mark, sorted(launch.cores), confinement))
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            socket.send_fds(self._socket, [packet], [ends.socket, ends.nudges, ends.output])
            return self._adopted(await self._answered(number, FORK_LIMIT_S), mark)
        except ProcessLookupError:
            raise ZygoteError("made a process that is no child of the server") from None
        except OSError as error:
            raise ZygoteError(f"does not take requests: {error.strerror}") from error
        finally:
            self._asked.pop(number, None)

    def _adopted(self, pid: int, mark: int) -> AdoptedProcess:
        """The process with a number that it has named, which may be that of somebody else's."""
        process = AdoptedProcess(pid)
        if mark and mark_of(pid) not in {mark, self._mark}:
            raise ProcessLookupError(pid)
        return process

    def _check_confined(self) -> None:
        if self._confinement is not None and self._confinement.users:
            wrong = contradictions(self.pid, self._confinement, {}, 1)
            if wrong:
                raise ZygoteError(f"is not confined as it has to be: {wrong}")

    async def _answered(self, number: int, limit_s: float) -> int:
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(self._asked[number])
        except TimeoutError:
            raise ZygoteError(f"did not answer within {limit_s:g} s") from None

    @property
    def is_ready(self) -> bool:
        """True if it has imported what it is to import."""
        return self._loop is not None and self._asked[0].done()

    def attend(self) -> None:
        """Hear it, from the first request on: it was perhaps started before there was a loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._asked[0] = self._loop.create_future()
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
            self._output.start(self._loop)

    def _on_readable(self) -> None:
        try:
            packet = self._socket.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        answer = _answer_in(packet)
        if answer is None:
            self._output.read_now()
            self.close("has ended" if not packet else "said something that it should not")
            return
        future = self._asked.get(answer.number)
        if future is None or future.done():
            return  # nobody waits for it any more
        if answer.failure:
            future.set_exception(ZygoteError(f"cannot: {' '.join(answer.failure.split())}"))
            future.exception()  # whoever waits gets it; if nobody does, it is not worth a complaint
        else:
            future.set_result(answer.pid)

    def close(self, why: str = "was ended") -> None:
        """End it, and with it the requests that it has not answered. What it has forked lives on."""
        if self.is_gone:
            return
        self.is_gone = True
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._output.finish()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ZygoteError(why))
                future.exception()


def _answer_in(packet: bytes) -> Forked | None:
    """What it says; None if that is nothing."""
    try:
        number, pid, failure = json.loads(packet)
    except (ValueError, TypeError):
        return None
    if type(number) is not int or type(pid) is not int or not isinstance(failure, str):
        return None
    return Forked(number, pid, failure)
