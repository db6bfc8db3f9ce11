"""The program of a front end: it accepts connections, and has no rights but to speak with its clients and the engine's process.

It runs once the process is confined (:mod:`pybackend_stub.host_program`): every module is imported by then, because no file can be read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  the event loop imports it late
import encodings.idna  # noqa: F401  likewise
import gc
import logging
import signal
import socket
from collections.abc import Sequence
from typing import Any

import uvloop

from pybackend.engine.answers import AnswerCounts, RefusalReason, Refusals
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.remote import control
from pybackend.frontend.remote.channel import Channel
from pybackend.frontend.remote.forwarded_calls import ForwardingGrpc
from pybackend.frontend.remote.forwarding import ForwardingPort
from pybackend.frontend.remote.messages import from_engine
from pybackend.frontend.remote.tunnels import Tunneller
from pybackend.frontend.tls import HandedCertificates, Pem
from pybackend.observability.unexpected import log_unexpected
from pybackend.protocol.limits import BodyLimits
from pybackend.settings import GrpcSettings, KeepaliveSettings
from pybackend_wire.errors import RemoteProtocolError

log = logging.getLogger(__name__)

_GC_THRESHOLD = 20_000
_LONGEST_S = 30 * 24 * 3600.0
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
    """This process.

    Attributes:
        ended: set when nothing is left to do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.ended = asyncio.Event()
        self._channel = Channel(loop, sock, from_engine, self._on_messages, self._on_end, takes_descriptors=True)
        self._tunneller = Tunneller(loop, self._channel)
        self._ports: dict[str, ForwardingPort | ForwardingGrpc] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._certificates: dict[str, HandedCertificates] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        logger = logging.getLogger("pybackend")
        logger.propagate = False
        logger.addHandler(_ToEngine(self._channel))

    def _on_messages(self, messages: list[Any], descriptors: Sequence[int]) -> None:
        left = iter(descriptors)
        for message in messages:
            match message:
                case control.Tunnel():
                    self._tunneller.opened(message.number, next(left))
                case control.NoTunnel():
                    self._tunneller.refused(message.number)
                case control.Look():
                    self._channel.post(control.Alive(sum(port.connection_count for port in self._ports.values())))
                case control.Begin():
                    self._begin(message)
                case control.Listen():
                    port = self._ports[message.service]
                    start = port.start(self._sockets[message.service], self._certificates.get(message.service))
                    self._do(start)
                case control.Certificates():
                    pem = Pem(message.chain, message.key, message.root)
                    self._certificates[message.service].take(pem)
                case control.LogLevel():
                    _log_from(message.verbose_level)
                case control.Stop():
                    for port in self._ports.values():
                        port.stop_listening()
                    self._do(self._end_after_answers())

    def _begin(self, begin: control.Begin) -> None:
        _log_from(begin.verbose_level)
        memory = ClientMemory(begin.most_memory_bytes)
        engine = _Counts(self._channel)
        for each in begin.certificates:
            pem = Pem(each.chain, each.key, each.root)
            self._certificates[each.service] = HandedCertificates(pem, _PROTOCOLS[each.service], mutual=each.mutual)
        if begin.http >= 0:
            self._sockets["http"] = _listening(begin.http)
            self._ports["http"] = ForwardingPort(self._tunneller, memory, engine.refusals, engine.answers["http"])
        if begin.grpc >= 0:
            settings = GrpcSettings(keepalive=KeepaliveSettings(**begin.keepalive))  # type: ignore[arg-type]
            limits = BodyLimits(begin.most_input_bytes)
            self._sockets["grpc"] = _listening(begin.grpc)
            self._ports["grpc"] = ForwardingGrpc(engine, limits, memory, settings, self._tunneller)  # type: ignore[arg-type]
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        self._channel.post(control.Ready())

    def _do(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_after_answers(self) -> None:
        """Wait for the last answers; the engine's process knows how long they may take."""
        for port in self._ports.values():
            await port.stop(asyncio.get_running_loop().time() + _LONGEST_S)
        self._channel.flush()
        self._channel.when_drained(self.ended.set)

    def _on_end(self, _error: RemoteProtocolError | None) -> None:
        self.ended.set()


def _listening(descriptor: int) -> socket.socket:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock


def _log_from(verbose_level: int) -> None:
    logging.getLogger("pybackend").setLevel(logging.DEBUG if verbose_level else logging.INFO)


class _ToEngine(logging.Handler):
    """Sends log records to the engine's process, which writes them."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.post(control.Line(record.levelno, record.filename, record.lineno, self.format(record)[:20_000]))


class _Counts:
    """What a front end counts of its own answers, with the names of the engine's."""

    def __init__(self, channel: Channel) -> None:
        self.refusals = _Refusals(channel)
        self.answers = {"http": _Answers(channel, "http"), "grpc": _Answers(channel, "grpc")}


class _Answers(AnswerCounts):
    __slots__ = ("_channel", "_service")

    def __init__(self, channel: Channel, service: control.Service) -> None:
        super().__init__("")
        self._channel = channel
        self._service = service

    def add(self, code: str) -> None:
        self._channel.post(control.Answered(self._service, code))


class _Refusals(Refusals):
    def __init__(self, channel: Channel) -> None:
        super().__init__(str)
        self._channel = channel

    def add(self, protocol: str, reason: RefusalReason, message: str, model: str = "", sender: str = "") -> None:
        service: control.Service = "http" if protocol == "http" else "grpc"
        self._channel.post(control.Refused(service, reason, message[:2000], model[:2000], sender[:200]))
