"""A gRPC client that says every frame itself, and a gRPC port in this process whose clock a test moves."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import hpack

from pybackend.engine.engine import InferenceEngine
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.grpc.connection import start_grpc
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallPolicy
from pybackend.frontend.listening import bind
from pybackend.protocol.limits import BodyLimits
from pybackend.settings import GrpcSettings, KeepaliveSettings
from tests.support import http2

_PINGS_ALLOWED = GrpcSettings(keepalive=KeepaliveSettings(max_ping_strikes=0))

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
SERVER_LIVE = "/inference.GRPCInferenceService/ServerLive"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


class RawClient:
    """One connection.

    Attributes:
        trailers: the last header block of each stream.
        heads: the first one.
        bodies: the data of each stream.
        resets: codes of RST_STREAM by stream.
        goaways: payloads of GOAWAY.
        returned: sums of WINDOW_UPDATE by stream; 0 is the connection.
        asked: PINGs of the server.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = hpack.Decoder()
        self._next_stream = 1
        self._together: list[bytes] | None = None
        self.pongs: list[bytes] = []
        self.asked = 0
        self.heads: dict[int, dict[str, str]] = {}
        self.trailers: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytes] = {}
        self.resets: dict[int, int] = {}
        self.goaways: list[bytes] = []
        self.returned: dict[int, int] = {}

    @classmethod
    async def connect(cls, address: tuple[str, int], **settings: int) -> Self:
        """Connect and greet; settings are ``id_N=value``."""
        client = cls(*await asyncio.open_connection(*address))
        client.write(http2.PREFACE, http2.settings(**settings))
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    def write(self, *frames: bytes) -> None:
        if self._together is None:
            self._writer.write(b"".join(frames))
        else:
            self._together += frames

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send all that is written meanwhile in one piece."""
        frames = self._together = []
        try:
            yield
        finally:
            self._together = None
            self.write(*frames)

    def open(self, path: str, *fields: tuple[str, str], ended: bool = False, **replaced: str) -> int:
        """Send the head of a call; returns its stream. Fields replace the usual ones of the same name."""
        usual = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "x",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = http2.block(*{**usual, **dict(fields), **replaced}.items())
        return self.open_by(block, http2.END_STREAM if ended else 0)

    def open_by(self, block: bytes, flags: int = 0) -> int:
        """Send a header block; returns its stream."""
        stream = self._next_stream
        self._next_stream += 2
        self.write(http2.frame(http2.HEADERS, http2.END_HEADERS | flags, stream, block))
        return stream

    def forbid_table(self) -> None:
        """Allow the server no dynamic table; its next header block must say that it has understood."""
        self._decoder.max_allowed_table_size = 0
        self.write(http2.settings(id_1=0))

    def send(self, stream: int, data: bytes, *, ended: bool = False) -> None:
        self.write(http2.frame(http2.DATA, http2.END_STREAM if ended else 0, stream, data))

    def call(self, path: str, data: bytes, *fields: tuple[str, str]) -> int:
        """Send a whole call; returns its stream."""
        stream = self.open(path, *fields)
        self.send(stream, data, ended=True)
        return stream

    async def until(self, condition: Callable[[], Any]) -> None:
        """Read until a condition holds.

        Raises:
            EOFError: the server closed the connection first.
        """
        while not condition():
            await self._read_frame()

    async def settled(self) -> None:
        """Returns once the server has done all that was sent before, and its answers have come."""
        for _ in range(2):  # what the server writes at the end of a turn comes behind the first answer
            mark = struct.pack(">Q", len(self.pongs))
            self.write(http2.frame(http2.PING, 0, 0, mark))
            await self.until(lambda mark=mark: mark in self.pongs)

    async def closed(self) -> None:
        """Read until the server closes the connection."""
        try:
            await self.until(lambda: False)
        except (EOFError, ConnectionError):
            return

    async def _read_frame(self) -> None:
        head = await self._reader.readexactly(9)
        length = int.from_bytes(head[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        payload = await self._reader.readexactly(length)
        if kind == http2.DATA:
            self.bodies[stream] = self.bodies.get(stream, b"") + payload
        elif kind == http2.HEADERS:
            fields = dict(self._decoder.decode(payload))
            self.heads.setdefault(stream, fields)
            if flags & http2.END_STREAM:
                self.trailers[stream] = fields
        elif kind == http2.RST_STREAM:
            self.resets[stream] = int.from_bytes(payload, "big")
        elif kind == http2.GOAWAY:
            self.goaways.append(payload)
        elif kind == http2.WINDOW_UPDATE:
            self.returned[stream] = self.returned.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            self.write(http2.frame(http2.SETTINGS, http2.ACK, 0))
        elif kind == http2.PING:
            if flags & http2.ACK:
                self.pongs.append(payload)
            else:
                self.asked += 1
                self.write(http2.frame(http2.PING, http2.ACK, 0, payload))

    async def status(self, stream: int) -> tuple[str, str]:
        """Status and message of a call, once it has ended."""
        await self.until(lambda: stream in self.trailers)
        found = self.trailers[stream]
        return found.get("grpc-status", found.get(":status", "")), found.get("grpc-message", "")


class Port:
    """A gRPC port.

    Attributes:
        address: where it listens.
        frontend: its state.
    """

    def __init__(self, address: tuple[str, int], frontend: GrpcFrontend) -> None:
        self.address = address
        self.frontend = frontend

    async def connect(self, **settings: int) -> RawClient:
        return await RawClient.connect(self.address, **settings)

    def advance(self, seconds: int) -> None:
        """Let the clock of connections run ahead."""
        self.frontend.tick(seconds)


@asynccontextmanager
async def grpc_port(
    engine: InferenceEngine,
    memory_limit_bytes: int = 1 << 30,
    settings: GrpcSettings = _PINGS_ALLOWED,
    policy: CallPolicy | None = None,
    *,
    fast_paths: bool = True,
) -> AsyncIterator[Port]:
    """A port on a free number; :meth:`RawClient.settled` needs settings that allow any number of PINGs."""
    frontend = GrpcFrontend(
        engine,
        BodyLimits(1 << 26),
        ClientMemory(memory_limit_bytes),
        policy=policy,
        settings=settings,
        fast_paths=fast_paths,
    )
    sock = bind("127.0.0.1", 0, "GRPC")
    await start_grpc(frontend, sock)
    try:
        yield Port(sock.getsockname(), frontend)
    finally:
        await frontend.stop(asyncio.get_running_loop().time())
