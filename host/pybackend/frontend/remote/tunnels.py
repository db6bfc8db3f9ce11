"""Tunnels: through them the engine's process answers what a front end does not answer itself.

A tunnel is a pair of sockets for one client of one front end. The engine's process serves its end as it serves a
client's connection, with the same code and the client's address, so that access rules, logs, counts and limits of time
and memory are the same for all connections. The kernel holds back the side that is too fast, and tells either side when
the other one has gone.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol

from pybackend.frontend.listener import NewConnection, is_reserved
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.channel import Channel

Serve = Callable[[], asyncio.Protocol]
"""Makes a connection of a port."""


# In the engine's process


class Tunnels:
    """The ends of the tunnels to one front end. ``serve`` has the ports by service."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: Channel, serve: dict[str, Serve]) -> None:
        self._loop = loop
        self._channel = channel
        self._serve = serve
        self._opening: set[asyncio.Task[Any]] = set()

    def open(self, asked: messages.OpenTunnel) -> None:
        """Make a tunnel for a client, if there are descriptors left, and if its port is served."""
        serve = self._serve.get(asked.service)
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            serve = None
        else:
            if is_reserved(max(ours.fileno(), theirs.fileno())):
                serve = None
                ours.close()
                theirs.close()
        if serve is None:
            self._channel.post(messages.NoTunnel(asked.number))
            return
        ours.setblocking(False)
        client = _Client(asked, ours.fileno())
        opening = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: NewConnection(partial(_serve, serve, client)), ours)
        )
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        self._channel.post_with(messages.TunnelOpened(asked.number), theirs.detach())


class _Client:
    """The client's socket, as far as its connection asks it."""

    def __init__(self, asked: messages.OpenTunnel, descriptor: int) -> None:
        self._descriptor = descriptor
        self._facts = {
            "socket": self,
            "peername": asked.client or "",
            "sockname": asked.server or "",
            "sslcontext": True if asked.is_secure else None,
        }

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """A fact about the client's connection, as a transport tells it."""
        return self._facts.get(name, default)

    def fileno(self) -> int:
        """The tunnel's descriptor: what waits there has not been sent to the client."""
        return self._descriptor

    def getpeername(self) -> Any:
        return self._facts["peername"]

    def getsockname(self) -> Any:
        return self._facts["sockname"]


def _serve(make: Serve, client: _Client, transport: Any) -> None:
    """Hand a tunnel to a connection, which sees the client behind it."""
    connection = make()
    transport.set_protocol(connection)
    connection.connection_made(_TunnelTransport(transport, client))  # type: ignore[arg-type]


class _TunnelTransport:
    """The transport of a tunnel, which speaks of the client."""

    def __init__(self, transport: Any, client: _Client) -> None:
        self._transport = transport
        self.get_extra_info = client.get_extra_info
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


# In a front end


class TunnelUser(Protocol):
    """The connection to which a tunnel belongs, as the tunnel sees it."""

    def on_tunnel_data(self, data: bytes) -> None:
        """The engine's process answers."""

    def on_no_tunnel(self) -> None:
        """There is no tunnel: the engine's process has no descriptors left."""

    def on_tunnel_lost(self) -> None:
        """The engine's process has closed the tunnel, as it closes the connection of a client.

        Not called after :meth:`Tunnel.close`.
        """

    def on_tunnel_full(self) -> None:
        """The engine's process takes no more for now."""

    def on_tunnel_free(self) -> None:
        """It takes more again."""


class Tunnel(asyncio.Protocol):
    """One tunnel. Bytes that are written before it is open wait."""

    def __init__(self, user: TunnelUser) -> None:
        self._user: TunnelUser | None = user
        self._transport: Any = None
        self._waiting: list[bytes] = []
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        """Whether the engine's process has the other end, and serves it."""
        return self._transport is not None

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes to the engine's process, which are copied."""
        if self._transport is not None:
            self._transport.write(data)
        else:
            self._waiting.append(bytes(data))

    def pause_reading(self) -> None:
        """Take no answers for now."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take answers again."""
        if self._is_paused:
            self._is_paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    def close(self) -> None:
        """Let go of the tunnel: the engine's process sees that the client has gone."""
        self._user = None
        if self._transport is not None:
            self._transport.abort()

    def refuse(self) -> None:
        user, self._user = self._user, None
        if user is not None:
            user.on_no_tunnel()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._user is None:
            transport.abort()
            return
        if self._is_paused:
            transport.pause_reading()
        waiting, self._waiting = self._waiting, []
        transport.writelines(waiting)

    def data_received(self, data: bytes) -> None:
        if self._user is not None:
            self._user.on_tunnel_data(data)

    def pause_writing(self) -> None:
        if self._user is not None:
            self._user.on_tunnel_full()

    def resume_writing(self) -> None:
        if self._user is not None:
            self._user.on_tunnel_free()

    def connection_lost(self, exc: Exception | None) -> None:
        user, self._user = self._user, None
        if user is not None:
            user.on_tunnel_lost()


class Tunneller:
    """Opens the tunnels of one front end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: Channel) -> None:
        self._loop = loop
        self._channel = channel
        self._numbers = count(1)
        self._asked: dict[int, Tunnel] = {}
        self._opening: set[asyncio.Task[Any]] = set()

    def open(self, service: messages.ClientProtocol, transport: Any, user: TunnelUser) -> Tunnel:
        """A tunnel for the client of a connection; ``transport`` is its own."""
        tunnel, number = Tunnel(user), next(self._numbers)
        self._asked[number] = tunnel
        client, server = (_place(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        is_secure = transport.get_extra_info("sslcontext") is not None
        self._channel.post(messages.OpenTunnel(number, service, client, server, is_secure))
        return tunnel

    def opened(self, number: int, descriptor: int) -> None:
        """The engine's process has sent the descriptor of a tunnel."""
        tunnel = self._asked.pop(number, None)
        if tunnel is None:
            os.close(descriptor)
            return
        sock = socket.socket(fileno=descriptor)
        sock.setblocking(False)
        opening = self._loop.create_task(self._loop.connect_accepted_socket(lambda: tunnel, sock))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    def refused(self, number: int) -> None:
        """There is no tunnel."""
        tunnel = self._asked.pop(number, None)
        if tunnel is not None:
            tunnel.refuse()


def _place(name: Any) -> messages.Place | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None
