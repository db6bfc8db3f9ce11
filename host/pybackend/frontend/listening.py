"""Sockets that listen: bound before models load, and served afterwards."""

from __future__ import annotations

import errno
import ipaddress
import socket

from pybackend.errors import ServerError
from pybackend.frontend.local_socket import LocalSocket
from pybackend.settings import LOCAL_ADDRESS

BACKLOG = 1024

_ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})  # noqa: S104  what a socket says of itself


def bind(address: str, port: int, service: str, *, reuse_port: bool = False) -> socket.socket:
    """A bound socket; connections wait in its backlog until it is served. A shared one is not offered any before.

    Args:
        address: an IPv4 or IPv6 address, a host's name, or ``unix:`` and the path of a Unix-domain socket. The IPv6 address
            ``::`` takes connections of IPv4 too.
        port: port number, 0 for a free one; without meaning for a Unix-domain socket.
        service: ``HTTP``, ``GRPC`` or ``Metrics``, for messages.
        reuse_port: share the port with other servers of the same user that also ask for it.

    Raises:
        ServerError: the address is unavailable.
    """
    if address.startswith(LOCAL_ADDRESS):
        return _prepared(LocalSocket(address, service, BACKLOG))
    host = address.removeprefix("ipv6:").strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        if not reuse_port:
            # Two sockets may be bound to one port while neither listens; listening now decides between them.
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _bind_error(error, address, port, service, reuse_port=reuse_port) from None
    except OverflowError:
        sock.close()
        raise ServerError(f"failed to start {service} service: {port} is not a valid port") from None
    return _prepared(sock)


def _bind_error(error: OSError, address: str, port: int, service: str, *, reuse_port: bool) -> ServerError:
    place = f"[{address}]:{port}" if address.count(":") > 1 and "[" not in address else f"{address}:{port}"
    if error.errno != errno.EADDRINUSE:
        return ServerError(f"failed to start {service} service: cannot listen on '{place}': {error.strerror}")
    flag = service.lower()
    advice = (
        f"Stop the program that listens there, or choose another port with --{flag}-port (0 takes a free one)"
        if not reuse_port
        else f"With --reuse-{flag}-port, every server on the port needs that flag and has to run as the same user"
    )
    return ServerError(f"failed to start {service} service: Socket '{place}' already in use. {advice}")


def _prepared(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


def release(sock: socket.socket) -> None:
    """Close a bound socket that is not served, and remove the file of a Unix-domain socket."""
    if isinstance(sock, LocalSocket):
        sock.remove_file()
    sock.close()


def address_of(sock: socket.socket) -> str:
    """``host:port``, ``[host]:port`` or ``unix:path`` of a bound socket, for the terminal."""
    if isinstance(sock, LocalSocket):
        return sock.address
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_for_all(sock: socket.socket) -> bool:
    """True for a port on all addresses of this machine."""
    return not isinstance(sock, LocalSocket) and sock.getsockname()[0] in _ALL_ADDRESSES


def is_local(sock: socket.socket) -> bool:
    """True for a port that only this machine can reach."""
    return isinstance(sock, LocalSocket) or ipaddress.ip_address(sock.getsockname()[0]).is_loopback
