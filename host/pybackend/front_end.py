"""The program of a front end: it accepts connections, and has no rights but to speak with its clients and the engine's process.

It runs once the process is confined (:mod:`pybackend_stub.host_program`): every module is imported by then, because no file can be read.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401  the event loop imports it late
import encodings.idna  # noqa: F401  likewise
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import uvloop

import pybackend.frontend.access.patterns  # noqa: F401  likewise, by forwarded headers
from pybackend.frontend.access.api_keys import KnownKeys
from pybackend.frontend.access.restrictions import Concealed, Secrets
from pybackend.frontend.access_rules import AccessRules
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.channel import Channel
from pybackend.frontend.remote.engine import RemoteEngine
from pybackend.frontend.remote.forwarded_calls import ForwardingGrpc
from pybackend.frontend.remote.forwarding import ForwardingPort
from pybackend.frontend.remote.tunnels import Tunneller
from pybackend.frontend.request_log import RequestLog
from pybackend.frontend.tls import HandedCertificates, Pem
from pybackend.observability.access_log import AccessLog, AccessRecord
from pybackend.observability.logging import LOG
from pybackend.observability.unexpected import log_unexpected, repeat
from pybackend.plugins import installed_apis
from pybackend.protocol.limits import BodyLimits
from pybackend.settings import ApiKeySettings, Settings
from pybackend_wire.errors import RemoteProtocolError

_APIS = installed_apis()
"""They are loaded before the process is confined."""

_GC_THRESHOLD = 20_000
_PROTOCOLS = {"http": "http/1.1", "grpc": "h2"}


def main(arguments: Sequence[str]) -> int:
    """Serve until the engine's process says that it is over, or has gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a terminal; the engine's decides
        signal.signal(number, signal.SIG_IGN)
    uvloop.run(_serve(socket.socket(fileno=int(arguments[0]))))
    return 0


async def _serve(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_unexpected)
    await FrontEnd(loop, sock).ended.wait()


class FrontEnd:
    """This process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.ended = asyncio.Event()  # set when nothing is left to do
        self._engine = RemoteEngine(sock, self._on_end)
        self._channel = self._engine.channel
        self._tunneller = Tunneller(loop, self._channel)
        self._http: ForwardingPort | None = None
        self._grpc: ForwardingGrpc | None = None
        self._sockets: dict[str, socket.socket] = {}
        self._certificates: dict[str, HandedCertificates] = {}
        self._keys: KnownKeys | None = None
        self._request_log = _QuietRequestLog()
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine.on_tracing = self._follow
        self._engine.handlers.update(
            {
                messages.NoTunnel: lambda message: self._tunneller.refused(message.number),
                messages.Look: self._on_look,
                messages.Begin: self._begin,
                messages.Listen: self._listen,
                messages.Certificates: self._take_certificates,
                messages.Keys: self._take_keys,
                messages.LogLevel: lambda message: LOG.change(verbose_level=message.verbose_level),
                messages.Stop: self._stop,
                messages.CloseIdle: self._close_idle,
            }
        )
        self._engine.descriptor_handlers[messages.TunnelOpened] = lambda message, descriptor: self._tunneller.opened(
            message.number, descriptor
        )
        logger = logging.getLogger("pybackend")
        logger.propagate = False
        logger.addHandler(_ToEngine(self._channel))

    @property
    def _ports(self) -> list[ForwardingPort | ForwardingGrpc]:
        return [port for port in (self._http, self._grpc) if port is not None]

    # Orders of the engine's process

    def _begin(self, begin: messages.Begin) -> None:
        LOG.change(verbose_level=begin.verbose_level)
        self._request_log = _QuietRequestLog(_RemoteAccessLog(self._channel) if begin.logs_access else None)
        self._request_log.open()
        LOG.watch(self._follow)
        for each in begin.certificates:
            pem = Pem(each.chain, each.key, each.root)
            self._certificates[each.service] = HandedCertificates(pem, _PROTOCOLS[each.service], mutual=each.mutual)
        self._sockets = {service: _listening(descriptor) for service, descriptor in begin.sockets.items()}
        api_keys = None
        if begin.keys is not None:
            self._keys = KnownKeys(_secrets(begin.keys))
            api_keys = ApiKeySettings(Path(), begin.exempt)
        settings = Settings((), http=begin.http, grpc=begin.grpc, api_keys=api_keys)
        rules = AccessRules(settings, self._engine.refusals, _APIS, is_handed=True, keys=self._keys)
        self._engine.memory.clients = client_memory = ClientMemory(begin.memory_limit_bytes)
        infer = InferFrontend(
            self._engine,
            BodyLimits(begin.http.max_input_size_bytes),
            client_memory,
            forwards=rules.http_forwards,
            fast_paths=begin.fast_paths,
        )
        if "http" in self._sockets:
            self._http = ForwardingPort(self._tunneller, self._engine, infer, rules, self._request_log)
        if "grpc" in self._sockets:
            self._grpc = ForwardingGrpc(self._tunneller, self._engine, infer, rules, self._request_log, begin.grpc)
        self._follow()
        self._do(repeat(1, self._engine.trim))
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        self._channel.post(messages.Ready())

    def _listen(self, asked: messages.Listen) -> None:
        sock, certificates = self._sockets[asked.service], self._certificates.get(asked.service)
        port = self._http if asked.service == "http" else self._grpc
        assert port is not None
        self._do(self._accept(asked.service, port.start(sock, certificates)))

    async def _accept(self, service: messages.ClientProtocol, starting: Awaitable[None]) -> None:
        failure = ""
        try:
            await starting
        except OSError as error:
            failure = error.strerror or "unknown"
        self._channel.post(messages.Accepting(service, failure))

    def _on_look(self, asked: messages.Look) -> None:
        self._channel.post(messages.Alive(asked.number, sum(port.connection_count for port in self._ports)))

    def _take_certificates(self, told: messages.Certificates) -> None:
        self._certificates[told.service].take(Pem(told.chain, told.key, told.root))

    def _take_keys(self, told: messages.Keys) -> None:
        if self._keys is not None:
            self._keys.take(_secrets(told.digests))
        for port in self._ports:
            port.forget_heads()

    def _follow(self) -> None:
        if self._http is not None:
            self._http.follow()

    def _stop(self, _asked: messages.Stop) -> None:
        for port in self._ports:
            port.stop_listening()
        self._do(self._end_after_answers())

    def _close_idle(self, _asked: messages.CloseIdle) -> None:
        for port in self._ports:
            port.close_idle()

    def _do(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_after_answers(self) -> None:
        """Wait for the last answers; the engine's process knows how long they may take."""
        for port in self._ports:
            await port.quiet()
        self._channel.post(messages.Quiet())
        for port in self._ports:
            await port.emptied()
        self._request_log.close()
        self._engine.trim()
        self._channel.flush()
        self._channel.when_drained(self.ended.set)

    def _on_end(self, _error: RemoteProtocolError | None) -> None:
        self.ended.set()


def _listening(descriptor: int) -> socket.socket:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock


def _secrets(digests: Sequence[bytes]) -> Secrets:
    return Secrets(map(Concealed, digests))


class _ToEngine(logging.Handler):
    """Sends log records to the engine's process, which writes them."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.post(messages.Line(record.levelno, record.filename, record.lineno, self.format(record)[:20_000]))


class _QuietRequestLog(RequestLog):
    """Says nothing at the beginning of a request: while the log is verbose, the engine's process answers all of them, and says it."""

    def _announce(self, protocol: str, method: bytes, path: str) -> None:
        pass


class _RemoteAccessLog(AccessLog):
    """Sends the facts about answered requests to the engine's process, which writes them."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def add(self, access: AccessRecord) -> None:
        self._channel.post(messages.Accessed(*access))  # type: ignore[arg-type]

    def flush(self) -> None:
        """Nothing waits here."""
