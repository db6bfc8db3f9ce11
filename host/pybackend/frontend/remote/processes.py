"""Front ends from the engine's side: their processes are started, looked after, and started again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ServerError
from pybackend.frontend.listening import BACKLOG, release
from pybackend.frontend.remote import control
from pybackend.frontend.remote.channel import Channel, socket_pair
from pybackend.frontend.remote.messages import from_front_end
from pybackend.frontend.remote.tunnels import Serve, Tunnels
from pybackend.frontend.tls import PortCertificates
from pybackend.instance.model_instance import RestartBackoff
from pybackend.observability.logging import LOG
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.unexpected import repeat
from pybackend.process.launcher import StubLauncher
from pybackend.process.stub_process import StubProcess
from pybackend.sandbox.front_ends import FrontEndSandbox
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import Settings
from pybackend_wire.errors import RemoteProtocolError

log = logging.getLogger(__name__)

_PROGRAM = "pybackend.frontend.remote.program"

BUSY_S = 10.0
"""CPU time that a front end may use before it answers."""

_STOPPED_LOOKS, _ASLEEP_LOOKS = 10, 30
"""Looks, about a second apart, at a process that is stopped, or that sleeps, and does not answer. One that waits for a core does neither."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Service:
    """A port that front ends serve: a socket for each of them, and what the engine's process answers through their tunnels."""

    sockets: Sequence[socket.socket]
    certificates: PortCertificates | None
    serve: Serve


class FrontEnds:
    """All front ends of a server."""

    def __init__(
        self,
        settings: Settings,
        engine: InferenceEngine,
        launcher: StubLauncher,
        sandbox: Sandbox,
        services: Mapping[control.Service, Service],
    ) -> None:
        self._services = services
        self._all = [
            FrontEnd(index, settings, engine, launcher, FrontEndSandbox(sandbox, _name(index)), services)
            for index in range(settings.front_ends)
        ]
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all of them, and wait until they can accept connections. Raises ServerError if one cannot."""
        LOG.watch(self._log_changed)
        for name, service in self._services.items():
            if service.certificates is not None:
                service.certificates.on_change.append(lambda name=name: self._certify(name))  # type: ignore[misc]
        self._looking = asyncio.create_task(repeat(1, self._look))
        await asyncio.gather(*(each.start() for each in self._all))
        log.info("%d front ends are ready", len(self._all))

    async def listen(self, service: control.Service) -> None:
        """Have all of them accept the connections of a port. Clients may come at once, and wait for one that starts again."""
        for sock in self._services[service].sockets:
            sock.listen(BACKLOG)
        for each in self._all:
            each.listen(service)

    def _look(self) -> None:
        for each in self._all:
            each.look()

    def _log_changed(self) -> None:
        for each in self._all:
            each.post(control.LogLevel(LOG.settings.verbose_level))

    def _certify(self, name: control.Service) -> None:
        message = certificates_of(name, self._services[name])
        if message is not None:
            for each in self._all:
                each.post(message)

    @property
    def connection_count(self) -> int:
        """Connections of clients, as far as the front ends have told."""
        return sum(each.connection_count for each in self._all)

    def stop_listening(self) -> None:
        """Refuse new connections and close idle ones; the others close after their current answers."""
        for each in self._all:
            each.stop()
        for service in self._services.values():
            for sock in set(service.sockets):
                release(sock)

    async def stop(self, deadline_s: float) -> bool:
        """Wait for the ends of all until a deadline of the loop's clock, then kill them; True if none had to be killed."""
        ended = await asyncio.gather(*(each.wait(deadline_s) for each in self._all))
        if self._looking is not None:
            self._looking.cancel()
            LOG.unwatch(self._log_changed)
        return all(ended)


def _name(index: int) -> str:
    return f"pybackend front end {index + 1}"


def certificates_of(name: control.Service, service: Service) -> control.Certificates | None:
    """The certificates of a port for a process that cannot read them; None for a plain port."""
    found = service.certificates
    return None if found is None else control.Certificates(name, *found.pem, found.settings.mutual)


class FrontEnd:
    """One front end, through all its restarts.

    Attributes:
        connection_count: its clients' connections when it was last asked.
    """

    def __init__(
        self,
        index: int,
        settings: Settings,
        engine: InferenceEngine,
        launcher: StubLauncher,
        sandbox: FrontEndSandbox,
        services: Mapping[control.Service, Service],
    ) -> None:
        self.connection_count = 0
        self._index = index
        self._name = _name(index)
        self._settings = settings
        self._engine = engine
        self._launcher = launcher
        self._sandbox = sandbox
        self._services = services
        self._listening: list[control.Service] = []
        self._backoff = RestartBackoff()
        self._process: StubProcess | None = None
        self._channel: Channel | None = None
        self._attention = _Attention()
        self._cause = ""
        self._is_ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._stops = False
        self._running: asyncio.Task[None] | None = None
        self._output = ModelOutput(self._name)

    # Its life

    async def start(self) -> None:
        """Start it, and wait until it is ready. Raises ServerError if it ends instead."""
        self._launch()
        ready, gone = (asyncio.create_task(event.wait()) for event in (self._is_ready, self._gone))
        await asyncio.wait({ready, gone}, return_when=asyncio.FIRST_COMPLETED)
        for each in (ready, gone):
            each.cancel()
        if not self._is_ready.is_set():
            raise ServerError(f"{self._name} {self._cause}{self._output.last_words}")
        self._running = asyncio.create_task(self._keep_running())

    async def _keep_running(self) -> None:
        while True:
            await self._gone.wait()
            if self._stops:
                return
            self._backoff.on_death()
            log.error(
                "%s %s, and its connections have ended with it. %s%s",
                self._name,
                self._cause,
                self._backoff.prospect,
                self._output.last_words,
            )
            await self._backoff.wait()
            if self._stops:
                return
            try:
                self._launch()
            except ServerError as error:
                self._cause = f"was not started: {error}"

    def _launch(self) -> None:
        self._is_ready.clear()
        self._gone.clear()
        self._cause = ""
        self._attention = _Attention()
        loop, sockets = asyncio.get_running_loop(), socket_pair()
        own = {name: service.sockets[self._index].fileno() for name, service in self._services.items()}
        try:
            process = self._launcher.start_host_program(
                self._name, _PROGRAM, sockets, list(own.values()), self._sandbox.confinement
            )
        except ServerError:
            sockets[0].close()
            self._gone.set()
            raise
        self._process = process
        process.send_output_to(self._output)
        process.on_exit(loop, self._on_exit)
        channel = self._channel = Channel(loop, sockets[0], from_front_end, self._on_messages, self._on_channel_end)
        self._tunnels = Tunnels(loop, channel, {name: service.serve for name, service in self._services.items()})
        http, count = self._settings.http, self._settings.front_ends
        certificates = [certificates_of(name, service) for name, service in self._services.items()]
        channel.post(
            control.Begin(
                own.get("http", -1),
                own.get("grpc", -1),
                [each for each in certificates if each is not None],
                http.max_input_size_bytes,
                http.memory_limit_bytes // count,
                asdict(self._settings.grpc.keepalive),
                LOG.settings.verbose_level,
            )
        )

    def _on_exit(self) -> None:
        """The process has ended, and nobody can have its memory or descriptors any more."""
        assert self._process is not None
        if self._channel is not None:
            self._channel.close()
        self._cause = self._cause or self._process.exit_cause
        self._process = self._channel = None
        self.connection_count = 0
        self._gone.set()

    def _end(self, cause: str) -> None:
        """Kill it, for a reason that completes the sentence "It ..."."""
        if self._process is not None and not self._cause:
            self._cause = cause
            self._process.kill()

    def _on_channel_end(self, error: RemoteProtocolError | None) -> None:
        if error is not None:
            self._end(f"was killed, because it broke the rules of its channel: {error}")
        elif self._process is not None:
            self._process.kill()

    # Messages

    def post(self, message: Any) -> None:
        """Send it a message, if it is there; one that starts later knows what the message says."""
        if self._channel is not None:
            self._channel.post(message)

    def listen(self, service: control.Service) -> None:
        """Have it accept the connections of a port, from now on and after each restart."""
        self._listening.append(service)
        if self._is_ready.is_set():
            self.post(control.Listen(service))

    def _on_messages(self, messages: list[Any], _descriptors: Sequence[int]) -> None:
        for message in messages:
            match message:
                case control.OpenTunnel():
                    self._tunnels.open(message)
                case control.Alive():
                    self._attention = _Attention()
                    self.connection_count = message.connections
                case control.Ready():
                    self._on_ready()
                case control.Line():
                    self._write(message)
                case control.Answered():
                    self._engine.answers[message.service].add(message.code)
                case control.Refused():
                    self._engine.refusals.add(
                        message.service, message.reason, message.text, message.model, message.sender
                    )

    def _on_ready(self) -> None:
        assert self._process is not None
        report = self._process.sandbox_report
        wrong = self._sandbox.check(self._process.pid, {} if report is None else report.layers)
        if wrong:
            self._end(f"was killed, because {wrong}")
            return
        self._backoff.on_ready()
        self._is_ready.set()
        for service in self._listening:
            self.post(control.Listen(service))

    def _write(self, line: control.Line) -> None:
        """Write a line of its log, unless it says too much."""
        if self._process is None or not log.isEnabledFor(line.level) or not self._output.affords(line.text.encode()):
            return
        record = log.makeRecord(log.name, line.level, line.file, line.number, line.text, (), None)
        record.process = self._process.pid
        log.handle(record)

    # Does it answer?

    def look(self) -> None:
        """Ask it whether it is there, about once a second, and kill it if it does not answer though it could."""
        if self._process is None or self._channel is None:
            return
        if not self._attention.is_asked:
            self._channel.post(control.Look())
        self._end_if(self._attention.verdict(self._process.pid))

    def _end_if(self, verdict: str) -> None:
        if verdict:
            self._end(f"was killed, because {verdict}")

    # The end

    def stop(self) -> None:
        """Have it accept no more connections, and end after the last answer."""
        self._stops = True
        self.post(control.Stop())
        if self._process is None:
            self._gone.set()

    async def wait(self, deadline_s: float) -> bool:
        """Wait for its end until a deadline of the loop's clock, then kill it; True if it did not have to be killed."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                await self._gone.wait()
        ended = self._gone.is_set()
        if self._process is not None:
            self._process.kill()
            await self._gone.wait()
        if self._running is not None:
            self._running.cancel()
        self._sandbox.close()
        return ended


class _Attention:
    """How long a front end has not answered, by its own time: one that gets no core is not at fault.

    Attributes:
        is_asked: it was asked, and has not answered.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._ticks_then = self._ticks_before = 0
        self._stopped = self._asleep = 0

    def verdict(self, pid: int) -> str:
        """What is wrong with the process, as a clause; ``""`` as long as it may only be slow."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return ""  # it is gone, and its end will be reported
        state, ticks = fields[0], int(fields[11]) + int(fields[12])
        if not self.is_asked:
            self.is_asked = True
            self._ticks_then = ticks
        self._stopped = self._stopped + 1 if state in {b"T", b"t"} else 0
        self._asleep = self._asleep + 1 if state == b"S" and ticks == self._ticks_before else 0
        self._ticks_before = ticks
        if ticks - self._ticks_then > BUSY_S * _TICKS_PER_S:
            return f"it has worked for {BUSY_S:g} s of CPU time without listening to the server"
        if self._stopped >= _STOPPED_LOOKS:
            return f"it has been stopped for {_STOPPED_LOOKS} s"
        if self._asleep >= _ASLEEP_LOOKS:
            return f"it has slept for {_ASLEEP_LOOKS} s without listening to the server"
        return ""
