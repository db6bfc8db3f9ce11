"""One zygote from the host's side: a process that has imported what stubs need, and forks them on request."""

import asyncio
import json
import socket
import subprocess

from pybackend.ipc.unwanted_descriptors import close, receiver_of
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.output_pipe import OutputPipe
from pybackend.process.orphans import mark_of
from pybackend.process.start import SandboxReport
from pybackend.process.stub_process import AdoptedProcess, StubEnds, StubLaunch
from pybackend.sandbox.verification import contradictions
from pybackend_wire.confinement import Confinement
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.zygote import MOST_BYTES, Fork, Forked, packed

START_LIMIT_S = 60.0
"""How long its imports may take."""

FORK_LIMIT_S = 10.0
"""How long a fork may take; it usually takes three milliseconds."""


class ZygoteError(Exception):
    """A zygote cannot make stubs; the text completes the sentence "It ..."."""


class ZygoteProcess:
    """A started zygote.

    Args:
        process: ended and reaped here.
        report: of the program that confined it; None if there is none.
        output: the end of the pipe that it and its imports print to.
        mark: its mark, and that of its forks until they bear their own.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        report: SandboxReport | None,
        sock: socket.socket,
        output: int,
        name: str,
        mark: int,
        confinement: Confinement | None = None,
    ) -> None:
        self.is_gone = False
        self._process = process
        self._sandbox_report = report
        self._mark = mark
        self._confinement = confinement
        self._socket = sock
        self._receive = receiver_of(sock)
        self._buffer = memoryview(bytearray(MOST_BYTES))
        self._output = OutputPipe(output, self._process.pid)
        self._output.output = ModelOutput(name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._numbers = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    async def fork(self, launch: StubLaunch, ends: StubEnds, mark: int) -> AdoptedProcess:
        """Fork a stub with these ends; returns the new process, which is a child of this one.

        Raises:
            ZygoteError: there is none; the zygote is no longer usable.
        """
        self.attend()
        await self._answered(0, START_LIMIT_S)
        self._check_confined()
        number = self._numbers = self._numbers + 1
        confinement = "" if launch.confinement is None else launch.confinement.to_json()
        packet = packed(Fork(number, mark, sorted(launch.cores), confinement, dict(launch.variables)))
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            socket.send_fds(self._socket, [packet], [ends.socket, ends.nudges, ends.output])
            process = AdoptedProcess(await self._answered(number, FORK_LIMIT_S))
            if mark and mark_of(process.pid) not in {mark, self._mark}:
                raise ProcessLookupError(process.pid)  # the zygote has named a process that is not its own
            return process
        except ProcessLookupError:
            raise ZygoteError("made a process that is not a child of the server") from None
        except OSError as error:
            raise ZygoteError(f"does not accept requests: {error.strerror}") from error
        finally:
            self._asked.pop(number, None)

    def _check_confined(self) -> None:
        if self._confinement is None or self._sandbox_report is None:
            return
        report = self._sandbox_report.layers
        if not report:
            raise ZygoteError("is not confined")
        wrong = contradictions(self.pid, self._confinement, report, 1)
        if wrong:
            raise ZygoteError(f"is not confined as it must be: {wrong}")

    async def _answered(self, number: int, limit_s: float) -> int:
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(self._asked[number])
        except TimeoutError:
            raise ZygoteError(f"did not answer within {limit_s:g} s") from None

    @property
    def is_ready(self) -> bool:
        return self._loop is not None and self._asked[0].done()

    def attend(self) -> None:
        """Begin to listen to it, at the first request: it may have been started before there was a loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._asked[0] = self._loop.create_future()
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
            self._output.start(self._loop)

    def _on_readable(self) -> None:
        try:
            count = self._receive(self._buffer)
            packet = bytes(self._buffer[:count])
        except BlockingIOError:
            return
        except RemoteProtocolError:
            packet = b"descriptors"
        except OSError:
            packet = b""
        answer = _answer_in(packet)
        if answer is None:
            self._output.read_now()
            self.close("has ended" if not packet else "sent something that it must not send")
            return
        future = self._asked.get(answer.number)
        if future is None or future.done():
            return  # nothing waits for it any more
        if answer.failure:
            future.set_exception(ZygoteError(f"cannot: {' '.join(answer.failure.split())}"))
            future.exception()  # awaiting code gets it; without any, asyncio should not complain
        else:
            future.set_result(answer.pid)

    def close(self, why: str = "was ended") -> None:
        """End it, and with it the requests that it has not answered. Its forks live on."""
        if self.is_gone:
            return
        self.is_gone = True
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        close(self._socket)
        self._process.kill()
        self._process.wait()
        if self._sandbox_report is not None:
            self._sandbox_report.end()
            why = f"was not started: {self._sandbox_report.failure}" if self._sandbox_report.failure else why
        self._output.finish()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ZygoteError(why))
                future.exception()


def _answer_in(packet: bytes) -> Forked | None:
    """Decode its answer; None if the packet is not an answer."""
    try:
        number, pid, failure = json.loads(packet)
    except (ValueError, TypeError):
        return None
    if type(number) is not int or type(pid) is not int or not isinstance(failure, str):
        return None
    return Forked(number, pid, failure)
