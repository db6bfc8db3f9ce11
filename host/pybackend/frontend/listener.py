"""A port: it accepts connections, plain or secure, and looks after those that are open until the server stops."""

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from pybackend.frontend.listening import BACKLOG, LocalSocket
from pybackend.frontend.slices import Slices
from pybackend.frontend.tls import Secured
from pybackend.observability.unexpected import repeat

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
"""A client whose TLS handshake takes longer is disconnected."""

MOST_HANDSHAKES = 1024
"""Of one port at a time; each holds some 60 KB. Further clients wait in the system's queue."""

GRACE_S = 1.0
"""A handshake that has taken so long is broken off when there are too many, so that a flood of them locks nobody out.
"""

_PAUSE_S = 0.1
"""The pause after an accept that failed, for example because there was no descriptor."""

LARGEST_RESERVE = 4096
"""Descriptors reserved for the server, to restart processes and grow tensor memory however many clients connect.

More would be useless: an instance takes about five, and some for its tensors.
"""

RESERVED_PART = 4
"""The fraction of descriptors that is reserved, as a divisor."""

_COMPLAINT_S = 60.0

_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
_LONGEST_METHOD = max(map(len, _METHODS))
_MOST_UNREAD_BYTES = 64 * 1024
_NOT_SECURE_TEXT = b'{"error":"this port speaks TLS: use https:// in place of http://"}'
_NOT_SECURE = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_NOT_SECURE_TEXT), _NOT_SECURE_TEXT)
)
"""The answer to a client of HTTP/1 that does without TLS."""


def is_reserved(descriptor: int) -> bool:
    """Whether a client's connection has a descriptor from the reserve.

    The system assigns the lowest free descriptor: if that is a high one, all below it are in use.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(LARGEST_RESERVE, limit // RESERVED_PART)


def is_secure(transport: asyncio.BaseTransport) -> bool:
    """True for a connection with TLS.

    Its transport keeps what it was given for an unknown time, and its count of waiting bytes includes those of TLS
    itself. Memory with another use afterwards must therefore be copied for it.
    """
    return transport.get_extra_info("sslcontext") is not None


class Connection(Protocol):
    """An open connection, as its port sees it."""

    transport: Any

    def check_progress(self, seconds: int) -> None:
        """Called about once a second, with the time since the previous call."""

    @property
    def may_ask(self) -> bool:
        """Whether something may still come that a model must answer: the client was not told that its connection ends."""

    def shut_down(self) -> None:
        """Close now if no request is running, else after the current answers."""


_C = TypeVar("_C", bound=Connection)


class Port(Generic[_C]):
    """A port and its connections."""

    def __init__(self) -> None:
        self.connections: set[_C] = set()  # those that are open
        self.seconds = 0  # incremented once a second; reading it costs nothing, unlike a timer per connection
        self.slices = Slices()  # the scheduler of long work
        self.closing = False  # True once the server stops: each answer that begins is the last one of its connection
        self.refusing = False  # True once it is too late for requests that still come
        self.ended = asyncio.Event()  # set when a connection has ended, and once a second while the server stops
        self._sock: socket.socket | None = None
        self._listener: asyncio.Server | _SecureListener | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def listen(
        self,
        sock: socket.socket,
        connection: Callable[[], asyncio.Protocol],
        refusal: bytes,
        tls: Secured | None,
    ) -> None:
        """Accept connections on a bound socket that does not block.

        A client of a plain port that is not accepted gets the refusal.
        """
        loop = asyncio.get_running_loop()
        self.look_after()
        self._sock = sock
        sock.listen(BACKLOG)  # for one that shares its port; others listen already
        if tls is not None:
            self._listener = _SecureListener(sock, connection, tls)
            return
        serve = loop.create_unix_server if sock.family is socket.AF_UNIX else loop.create_server
        self._listener = await serve(
            lambda: NewConnection(partial(_accept, connection, refusal)), sock=sock, backlog=BACKLOG
        )

    def look_after(self) -> None:
        """Look once a second how the connections get on."""
        self._ticking = asyncio.get_running_loop().create_task(repeat(1, self.tick))

    @property
    def connection_count(self) -> int:
        """Connections that are not being closed."""
        return sum(not connection.transport.is_closing() for connection in self.connections)

    def tick(self, seconds: int = 1) -> None:
        """Time has passed: the one timer of all connections."""
        self.seconds += seconds
        for connection in list(self.connections):
            connection.check_progress(seconds)
        if self.closing:
            self.ended.set()

    def left(self, connection: _C) -> None:
        self.connections.discard(connection)
        self.ended.set()

    def stop_listening(self) -> None:
        """Refuse new connections.

        Those that clients keep stay open: what still comes is answered, and told to be the last.
        """
        if isinstance(self._sock, LocalSocket):
            self._sock.remove_file()
        if self._listener is not None:
            self._listener.close()
        self.closing = True

    def close_idle(self) -> None:
        """Close connections without a running request; the others close after their current answers."""
        self.refusing = True
        for connection in list(self.connections):
            connection.shut_down()

    @property
    def is_quiet(self) -> bool:
        """Whether models have all that may still come on connections that clients have."""
        return not any(connection.may_ask for connection in self.connections)

    async def quiet(self) -> None:
        """Return once :attr:`is_quiet`, or soon after."""
        while not self.is_quiet:
            self.ended.clear()
            await self.ended.wait()

    async def emptied(self) -> None:
        """Return once no connection is left."""
        while self.connections:
            self.ended.clear()
            await self.ended.wait()

    async def stop(self, deadline_s: float) -> bool:
        """Wait for connections until a deadline of the loop's clock, then abort them; True if none was left."""
        self.stop_listening()
        self.close_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                await self.emptied()
        cut = list(self.connections)
        for connection in cut:
            connection.transport.abort()
        if self._ticking is not None:
            self._ticking.cancel()
        return not cut


class NewConnection(asyncio.Protocol):
    """Stands for a connection until there is its transport, which it gives to ``serve``."""

    def __init__(self, serve: Callable[[Any], None]) -> None:
        self._serve = serve

    def connection_made(self, transport: Any) -> None:
        self._serve(transport)


def _accept(make: Callable[[], asyncio.Protocol], refusal: bytes, transport: Any) -> None:
    """Accept or refuse a client of a plain port."""
    if is_reserved(transport.get_extra_info("socket").fileno()):
        transport.write(refusal)
        transport.close()
        _complain()
        return
    connection = make()
    transport.set_protocol(connection)
    connection.connection_made(transport)


_complained_s = -_COMPLAINT_S


def _complain() -> None:
    """Log, from time to time, that clients are refused."""
    global _complained_s
    now_s = time.monotonic()
    if now_s - _complained_s >= _COMPLAINT_S:
        _complained_s = now_s
        log.warning(
            "Clients use all descriptors available to them, and further connections are refused. A higher limit of "
            "open files (ulimit -n) allows more."
        )


def _answer_in_plain(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.recv(_MOST_UNREAD_BYTES)  # what stays unread resets the connection, and the answer may be lost
        connection.send(_NOT_SECURE)
        connection.shutdown(socket.SHUT_WR)


class _SecureListener:
    """A port with TLS. It accepts by itself: a server of the loop begins the handshake before anybody can refuse it."""

    def __init__(self, sock: socket.socket, connection: Callable[[], asyncio.Protocol], tls: Secured) -> None:
        self._sock = sock
        self._connection = connection
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], float] = {}  # and when they began, the oldest first
        self._ended = asyncio.Event()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Refuse new connections; handshakes that have begun are broken off."""
        self._accepting.cancel()
        for task in self._handshakes:
            task.cancel()
        self._sock.close()

    async def _accept(self) -> None:
        while True:
            if len(self._handshakes) >= MOST_HANDSHAKES:
                await self._end_one()
            try:
                connection, _ = await self._loop.sock_accept(self._sock)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            if is_reserved(connection.fileno()):
                connection.close()
                _complain()
                continue
            task = self._loop.create_task(self._secure(connection))
            self._handshakes[task] = self._loop.time()
            task.add_done_callback(self._handshake_ended)

    async def _end_one(self) -> None:
        """Wait until a handshake ends; if none does for a while, break off the oldest."""
        oldest, began_s = next(iter(self._handshakes.items()))
        self._ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(began_s + GRACE_S):
                await self._ended.wait()
        if len(self._handshakes) >= MOST_HANDSHAKES:
            self._handshakes.pop(oldest, None)
            oldest.cancel()

    def _handshake_ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        self._ended.set()

    async def _secure(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                begins_as_http = await self._begins_as_http(connection)
            if begins_as_http:
                _answer_in_plain(connection)
                return
            await self._loop.connect_accepted_socket(
                self._connection, connection, ssl=self._tls.context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:  # of which TLS errors and time-outs are kinds
            log.debug("A client is not served, because its TLS handshake failed: %s", str(error) or "it takes too long")
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    async def _begins_as_http(self, connection: socket.socket) -> bool:
        """Whether a client speaks HTTP/1 without TLS, by its first bytes, which stay unread."""
        arrived = asyncio.Event()
        self._loop.add_reader(connection, arrived.set)
        try:
            await arrived.wait()
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(_LONGEST_METHOD, socket.MSG_PEEK).startswith(_METHODS)
