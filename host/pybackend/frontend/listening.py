"""Sockets that listen: bound before models load, and served afterwards."""

from __future__ import annotations

import socket

from pybackend.errors import ServerError

BACKLOG = 1024


def bind(address: str, port: int, service: str) -> socket.socket:
    """A bound socket that does not listen yet.

    Raises:
        ServerError: the address is unavailable.
    """
    host = address.removeprefix("ipv6:").strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        # Two sockets may be bound to one port while neither listens; listening now decides between them.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == 98:
            raise ServerError(
                f"failed to start {service} service: Socket '{address}:{port}' already in use. Stop the program that "
                f"listens there, or choose another port with --{service.lower()}-port (0 takes a free one)"
            ) from None
        raise ServerError(
            f"failed to start {service} service: cannot listen on '{address}:{port}': {error.strerror}"
        ) from None
    except OverflowError:
        sock.close()
        raise ServerError(f"failed to start {service} service: {port} is not a valid port") from None
    sock.setblocking(False)
    return sock


def address_of(sock: socket.socket) -> str:
    """``host:port`` of a bound socket, for the terminal."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
