"""Front ends from the engine's side: their processes are started, looked after, and started again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ServerError
from pybackend.frontend.access.api_keys import KnownKeys
from pybackend.frontend.access.restrictions import digest_of
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.listening import BACKLOG, LocalSocket, bind_for, listens, release
from pybackend.frontend.metrics.optional_families import FrontEndFigures
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.channel import socket_pair
from pybackend.frontend.remote.open_questions import OpenQuestions
from pybackend.frontend.remote.service import FrontEndService, Shortage
from pybackend.frontend.remote.tunnels import Serve, Tunnels
from pybackend.frontend.request_log import RequestLog
from pybackend.frontend.tls import PortCertificates
from pybackend.inference.tensor import Buffer
from pybackend.instance.model_instance import RestartBackoff
from pybackend.ipc.arena import TensorArena
from pybackend.observability.access_log import AccessRecord
from pybackend.observability.logging import LOG
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.unexpected import repeat
from pybackend.process.launcher import StubLauncher
from pybackend.process.stub_process import StubProcess
from pybackend.sandbox.front_ends import FrontEndSandbox
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import Restriction, Settings
from pybackend_wire.errors import RemoteProtocolError

log = logging.getLogger(__name__)

_PROGRAM = "pybackend.front_end"

BUSY_S = 10.0
"""CPU time that a front end may use before it answers."""

_STOPPED_LOOKS, _ASLEEP_LOOKS = 10, 30
"""Looks, about a second apart, at a process that is stopped, or that sleeps, and does not answer. One that waits for a
core does neither."""

_SETTLING_S = _ROOM_S = 1.0
"""How long others wait for a front end that may not answer."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class ServedPort:
    """A port that front ends serve: a socket for each of them, and what the engine's process answers through their tunnels.

    Attributes:
        title: its name in messages.
    """

    title: str
    sockets: list[socket.socket]
    certificates: PortCertificates | None
    serve: Serve

    def __post_init__(self) -> None:
        first = self.sockets[0]
        self._place: tuple[str, int] = (first.address, 0) if isinstance(first, LocalSocket) else first.getsockname()[:2]

    def listens(self, index: int) -> bool:
        """False if a socket was shut down, or could not be bound again."""
        return self.sockets[index].fileno() >= 0 and listens(self.sockets[index])

    def let_go(self, index: int) -> None:
        """Have the system give new connections to other front ends. Those that wait in the socket end."""
        sock = self.sockets[index]
        if not isinstance(sock, LocalSocket):  # others accept what waits there
            with suppress(OSError):  # it was shut down before
                sock.shutdown(socket.SHUT_RDWR)

    def bind_again(self, index: int) -> None:
        """Put a new socket in the place of one that was shut down; the front end will listen.

        Raises ServerError if the address is unavailable.
        """
        dead = self.sockets[index]
        dead.close()
        address, port = self._place
        new = bind_for(1, address, port, self.title, reuse_port=True)[0]
        self.sockets[:] = [new if each is dead else each for each in self.sockets]


class FrontEnds:
    """All front ends of a server."""

    def __init__(
        self,
        settings: Settings,
        engine: InferenceEngine,
        launcher: StubLauncher,
        sandbox: Sandbox,
        services: Mapping[messages.ClientProtocol, ServedPort],
        keys: KnownKeys | None,
        request_log: RequestLog,
        client_memory: ClientMemory,
    ) -> None:
        self._client_memory = client_memory
        self._services = services
        self._keys = keys
        self._all = [
            FrontEndProcess(
                index,
                settings,
                engine,
                launcher,
                FrontEndSandbox(sandbox, _name(index), BACKLOG),
                services,
                keys,
                request_log,
            )
            for index in range(settings.front_ends)
        ]
        for each in self._all:
            each.on_shortage = self.make_room
            each.has_deputy = partial(_other_accepts, each, self._all)
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all of them, and wait until they can accept connections. Raises ServerError if one cannot."""
        LOG.watch(self._log_changed)
        for name, service in self._services.items():
            if service.certificates is not None:
                service.certificates.files.handing.append(partial(self._hand, partial(certificates_of, name, service)))
        if self._keys is not None:
            self._keys.handing.append(partial(self._hand, partial(_keys_of, self._keys)))
        self._looking = asyncio.create_task(repeat(1, self._look))
        await asyncio.gather(*(each.start() for each in self._all))
        log.info("%d front end%s ready", len(self._all), " is" if len(self._all) == 1 else "s are")

    async def listen(self, service: messages.ClientProtocol) -> None:
        """Have all of them accept the connections of a port.

        Clients may come at once, and wait for one that starts again.
        """
        for sock in self._services[service].sockets:
            sock.listen(BACKLOG)
        for each in self._all:
            each.listen(service)

    def _look(self) -> None:
        for each in self._all:
            each.look()

    @property
    def _running(self) -> list[FrontEndService]:
        return [each.service for each in self._all if each.service is not None]

    def _post(self, message: Struct) -> None:
        """Tell all that are there; one that starts later knows what the message says."""
        for service in self._running:
            service.channel.post(message)

    def _log_changed(self) -> None:
        self._post(messages.LogLevel(LOG.settings.verbose_level))

    def check(self) -> None:
        """Tell all of them what has changed of models, before their clients can know."""
        for service in self._running:
            service.check()
            service.channel.flush()

    async def _hand(self, made: Callable[[], Struct]) -> None:
        """Tell all of them something, and return once each goes by it."""
        self._post(made())
        await asyncio.gather(*(each.heard() for each in self._all))

    async def spread_settings(self) -> None:
        """Return once all of them go by the present settings of the log and of traces, or soon: one may not answer."""
        self.check()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLING_S):
                await asyncio.gather(*(each.heard() for each in self._all))

    async def counted(self) -> list[FrontEndFigures]:
        """Their figures, once all answers are counted that clients have got so far, or soon: one may not answer."""
        figures = [each.figures for each in self._all]
        ready = [each.service for each in self._all if each.service is not None and each.is_ready.is_set()]
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLING_S):
                await asyncio.gather(*(service.settle() for service in ready))
        return figures

    def make_room(self, arena: TensorArena, then: Callable[[], None]) -> bool:
        """Have all of them return the memory of a model that they do not use, because one of them needs more.

        ``then`` follows, soon in any case: one may not answer. False if there is nothing.
        """
        waits = True

        def once() -> None:
            nonlocal waits
            if waits:
                waits = False
                then()

        def drop_sender(answered: Callable[[], None]) -> bool:
            """Disconnect a slow client whose request arrives through a tunnel."""
            if not self._client_memory.drop_sender(lambda admission: admission.can_serve(arena)):
                return False
            asyncio.get_running_loop().call_soon(answered)
            return True

        asked = _ask_all([drop_sender, *(partial(service.make_room, arena) for service in self._running)], once)
        if asked:
            asyncio.get_running_loop().call_later(_ROOM_S, once)
        return asked

    def drop_readers(self, is_part: Callable[[Buffer], bool], nbytes: int, then: Callable[[], None]) -> bool:
        """Disconnect slow clients; see :meth:`pybackend.frontend.flow.ClientMemory.drop_readers`."""
        return _ask_all([partial(service.drop_readers, is_part, nbytes) for service in self._running], then)

    @property
    def all_accept(self) -> bool:
        """False while one of them cannot accept connections.

        One that is started again for the first time in a row can do so soon.
        """
        return not any(each.is_out for each in self._all)

    @property
    def connection_count(self) -> int:
        """Connections of clients, as far as the front ends have told."""
        return sum(each.connection_count for each in self._all)

    def stop_listening(self) -> None:
        """Refuse new connections; see :meth:`pybackend.frontend.listener.Port.stop_listening`."""
        for each in self._all:
            each.stop()
        for service in self._services.values():
            for sock in set(service.sockets):
                release(sock)

    def close_idle(self) -> None:
        """Close connections without a running request; the others close after their current answers."""
        self._post(messages.CloseIdle())

    @property
    def is_quiet(self) -> bool:
        """Whether all have told that models have all that may still come.

        See :attr:`pybackend.frontend.listener.Port.is_quiet`.
        """
        return all(each.is_quiet.is_set() for each in self._all)

    async def quiet(self) -> None:
        """Return once :attr:`is_quiet`."""
        await asyncio.gather(*(each.is_quiet.wait() for each in self._all))

    async def stop(self, deadline_s: float) -> bool:
        """Wait for the ends of all until a deadline of the loop's clock, then kill them.

        True if none had to be killed.
        """
        ended = await asyncio.gather(*(each.wait(deadline_s) for each in self._all))
        if self._looking is not None:
            self._looking.cancel()
            LOG.unwatch(self._log_changed)
        return all(ended)


def _ask_all(questions: Sequence[Callable[[Callable[[], None]], bool]], then: Callable[[], None]) -> bool:
    """Ask all, each of which returns whether it will answer; ``then`` follows the last answer.

    False if there will be none.
    """
    left = 1

    def answered() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    for ask in questions:
        left += ask(answered)
    left -= 1
    return left > 0


def _digested(restrictions: Sequence[Restriction]) -> tuple[Restriction, ...]:
    return tuple(replace(each, value=digest_of(each.value.encode()).decode()) for each in restrictions)


def _name(index: int) -> str:
    return f"pybackend front end {index + 1}"


def certificates_of(name: messages.ClientProtocol, service: ServedPort) -> messages.Certificates:
    """The certificates of a secure port for a process that cannot read them."""
    found = service.certificates
    assert found is not None
    return messages.Certificates(name, *found.pem, found.settings.mutual)


def _keys_of(keys: KnownKeys) -> messages.Keys:
    return messages.Keys(list(keys.digests))


def _other_accepts(one: FrontEndProcess, all_: Sequence[FrontEndProcess]) -> bool:
    return any(each.accepts for each in all_ if each is not one)


def _begin_message(
    settings: Settings, services: Mapping[messages.ClientProtocol, ServedPort], keys: KnownKeys | None, index: int
) -> messages.Begin:
    """The first message to a front end, which gets the sockets with its index."""
    return messages.Begin(
        {name: service.sockets[index].fileno() for name, service in services.items()},
        [certificates_of(name, service) for name, service in services.items() if service.certificates is not None],
        replace(settings.http, tls=None, restrictions=_digested(settings.http.restrictions)),
        replace(settings.grpc, tls=None, restrictions=_digested(settings.grpc.restrictions)),
        None if keys is None else list(keys.digests),
        frozenset() if settings.api_keys is None else settings.api_keys.exempt,
        settings.http.memory_limit_bytes // settings.front_ends,
        settings.fast_paths,
        settings.log.access,
        LOG.settings.verbose_level,
    )


def _no_room(_arena: TensorArena, _then: Callable[[], None]) -> bool:
    return False


class FrontEndProcess:
    """One front end, through all its restarts."""

    def __init__(
        self,
        index: int,
        settings: Settings,
        engine: InferenceEngine,
        launcher: StubLauncher,
        sandbox: FrontEndSandbox,
        services: Mapping[messages.ClientProtocol, ServedPort],
        keys: KnownKeys | None,
        request_log: RequestLog,
    ) -> None:
        self.connection_count = 0  # its clients' connections when it was last asked
        self.is_quiet = asyncio.Event()  # set, once it is told to stop, when it is as quiet as a port is
        self.on_shortage: Shortage = _no_room  # see :meth:`FrontEnds.make_room`
        self.has_deputy: Callable[[], bool] = lambda: False  # whether another one accepts connections
        self._keys = keys
        self._request_log = request_log
        self._restarts = 0
        self._looks = OpenQuestions()
        self._index = index
        self._name = _name(index)
        self._settings = settings
        self._engine = engine
        self._launcher = launcher
        self._sandbox = sandbox
        self._services = services
        self._listening: list[messages.ClientProtocol] = []
        self._accepting: set[messages.ClientProtocol] = set()
        self._backoff = RestartBackoff()
        self._process: StubProcess | None = None
        self.service: FrontEndService | None = None  # its data path; None while there is no process
        self._attention = Attention()
        self._cause = ""
        self.is_ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._stops = False
        self._running: asyncio.Task[None] | None = None
        self._output = ModelOutput(self._name)

    # Its life

    async def start(self) -> None:
        """Start it, and wait until it is ready. Raises ServerError if it ends instead."""
        self._launch()
        ready, gone = (asyncio.create_task(event.wait()) for event in (self.is_ready, self._gone))
        await asyncio.wait({ready, gone}, return_when=asyncio.FIRST_COMPLETED)
        for each in (ready, gone):
            each.cancel()
        if not self.is_ready.is_set():
            raise ServerError(f"{self._name} {self._cause}{self._output.last_words}")
        self._running = asyncio.create_task(self._keep_running())

    async def _keep_running(self) -> None:
        while True:
            await self._gone.wait()
            if self._stops:
                return
            if self.is_ready.is_set():  # otherwise it has failed once more in the same row
                self._backoff.on_death()
            log.error(
                "%s %s, and its connections have ended with it. %s%s",
                self._name,
                self._cause,
                self._backoff.prospect,
                self._output.last_words,
            )
            if self._backoff.delay_s and self.has_deputy():
                for name in self._listening:
                    self._services[name].let_go(self._index)
            await self._backoff.wait()
            if self._stops:
                return
            self._restarts += 1
            try:
                self._launch()
            except ServerError as error:
                self._cause = f"was not started: {error}"

    def _launch(self) -> None:
        self.is_ready.clear()
        self._gone.clear()
        self._cause = ""
        self._attention = Attention()
        loop = asyncio.get_running_loop()
        try:
            sockets = socket_pair()
        except OSError as error:
            self._gone.set()
            raise ServerError(f"a socket cannot be made: {error.strerror}") from error
        try:
            for name in self._listening:
                if not self._services[name].listens(self._index):
                    self._services[name].bind_again(self._index)
            begin = _begin_message(self._settings, self._services, self._keys, self._index)
            process = self._launcher.start_host_program(
                self._name, _PROGRAM, sockets, list(begin.sockets.values()), self._sandbox.confinement
            )
        except ServerError:
            for end in sockets:
                end.close()
            self._gone.set()
            raise
        self._process = process
        process.send_output_to(self._output)
        process.on_exit(loop, partial(self._on_exit, process))
        service = self.service = FrontEndService(self._engine, sockets[0], self._on_channel_end)
        tunnels = Tunnels(loop, service.channel, {name: each.serve for name, each in self._services.items()})
        service.handlers.update(
            {
                messages.OpenTunnel: tunnels.open,
                messages.Alive: self._on_alive,
                messages.Ready: partial(self._on_ready, process),
                messages.Accepting: self._on_accepting,
                messages.Line: self._write,
                messages.Accessed: partial(_log_access, self._request_log),
                messages.Quiet: lambda _told: self.is_quiet.set(),
            }
        )
        service.on_shortage = self.on_shortage
        service.channel.post(begin)

    def _on_exit(self, process: StubProcess) -> None:
        """The process has ended, and nobody can have its memory or descriptors any more."""
        if self.service is not None:
            self.service.end()
        self._cause = self._cause or process.exit_cause
        self._process = self.service = None
        self.connection_count = 0
        self._accepting.clear()
        self._looks.end()
        if self._stops:
            self.is_quiet.set()
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

    @property
    def figures(self) -> FrontEndFigures:
        pid = 0 if self._process is None else self._process.pid
        return FrontEndFigures(str(self._index + 1), pid, self.connection_count, self._restarts)

    # Messages

    def _tell(self, message: Struct) -> None:
        """Send it a message, if it is there."""
        if self.service is not None:
            self.service.channel.post(message)

    def listen(self, service: messages.ClientProtocol) -> None:
        """Have it accept the connections of a port, from now on and after each restart."""
        self._listening.append(service)
        if self.is_ready.is_set():
            self._tell(messages.Listen(service))

    def _on_accepting(self, told: messages.Accepting) -> None:
        if told.service not in self._listening:
            raise RemoteProtocolError(f"it was not told to accept connections of {told.service}")
        if told.failure:
            self._end(f"was killed, because it cannot accept connections of {told.service}: {told.failure}")
        self._accepting.add(told.service)

    @property
    def accepts(self) -> bool:
        """True if it accepts connections of all ports that are open."""
        return self._accepting.issuperset(self._listening)

    @property
    def is_out(self) -> bool:
        """True if it does not, although it was started again."""
        return self._backoff.restarts > 1 and not self.accepts

    async def heard(self) -> None:
        """Return once it has done all that it was told so far, or is gone: one that does not answer is killed."""
        if self.service is not None:
            await self._looks.answer(partial(_look, self.service))

    def _on_alive(self, told: messages.Alive) -> None:
        self._looks.answered(told.number)
        if self.service is not None:
            self.service.alive()
        self._attention = Attention()
        self.connection_count = told.connections

    def _on_ready(self, process: StubProcess, _told: messages.Ready) -> None:
        report = process.sandbox_report
        wrong = self._sandbox.check(process.pid, {} if report is None else report.layers)
        if wrong:
            self._end(f"was killed, because {wrong}")
            return
        self._backoff.on_ready()
        self.is_ready.set()
        for service in self._listening:
            self._tell(messages.Listen(service))

    def _write(self, line: messages.Line) -> None:
        """Write a line of its log, unless it says too much."""
        if self._process is None or not log.isEnabledFor(line.level) or not self._output.affords(line.text.encode()):
            return
        record = log.makeRecord(log.name, line.level, line.file, line.number, line.text, (), None)
        record.process = self._process.pid
        log.handle(record)

    # Does it answer?

    def look(self) -> None:
        """Ask it whether it is there, about once a second, and kill it if it does not answer though it could."""
        if self._process is None or self.service is None:
            return
        self.service.trim(time.monotonic_ns())
        if not self._looks:
            _look(self.service, self._looks.ask(lambda: None))
        verdict = self._attention.verdict(*_state_of(self._process.pid))
        if not self._stops and not all(self._services[name].listens(self._index) for name in self._accepting):
            verdict = "its listening socket was shut down"
        if verdict:
            self._end(f"was killed, because {verdict}")

    # The end

    def stop(self) -> None:
        """Have it accept no more connections, and end once the last one is closed."""
        self._stops = True
        self._tell(messages.Stop())
        if self._process is None:
            self.is_quiet.set()
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


def _look(service: FrontEndService, number: int) -> None:
    service.channel.post(messages.Look(number))


def _log_access(request_log: RequestLog, told: messages.Accessed) -> None:
    if request_log.access is not None:
        request_log.access.add(AccessRecord(*astuple(told)))


def _state_of(pid: int) -> tuple[bytes, int]:
    """The state of a process, and its CPU time in ticks; an empty state if it is gone: its end will be reported."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return b"", 0
    return fields[0], int(fields[11]) + int(fields[12])


class Attention:
    """How long a front end has not answered, by its own time: one that gets no core is not at fault."""

    def __init__(self) -> None:
        self.is_asked = False  # it was asked, and has not answered
        self._ticks_then = self._ticks_before = 0
        self._stopped = self._asleep = 0

    def verdict(self, state: bytes, ticks: int) -> str:
        """The fault of a process that has used so much CPU time, as a clause; ``""`` as long as it may only be slow."""
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
