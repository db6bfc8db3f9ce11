"""Sockets that listen: bound before models load, and served afterwards."""

import errno
import fcntl
import ipaddress
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pybackend.errors import ServerError
from pybackend.settings import LOCAL_ADDRESS

BACKLOG = 1024

_ACCEPT_S = struct.pack("@ll", 0, 1000)
"""How long to wait for a connection in a socket that was made to wait, as seconds and microseconds."""

_ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})  # noqa: S104  what a socket says of itself


def bind(address: str, port: int, service: str, *, reuse_port: bool = False) -> socket.socket:
    """A bound socket; connections wait in its backlog until it is served. A shared one is not offered any before.

    The address is IPv4, IPv6, a host's name, or ``unix:`` and the path of a Unix-domain socket; ``::`` takes
    connections of IPv4 too. The port 0 is a free one. The service is named in messages. ``reuse_port`` shares the port
    with other servers of the same user that also ask for it.

    Raises:
        ServerError: the address is unavailable.
    """
    if address.startswith(LOCAL_ADDRESS):
        local = LocalSocket(address, service, BACKLOG)
        local.setblocking(False)
        return local
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
    sock.setblocking(False)
    return sock


def bind_for(count: int, address: str, port: int, service: str, *, reuse_port: bool = False) -> list[socket.socket]:
    """As :func:`bind`, for so many processes: a socket for each, among which the system shares out the connections.

    Nobody else may share them unless ``reuse_port``. A Unix-domain socket is one for all.
    """
    first = bind(address, port, service, reuse_port=reuse_port)
    if isinstance(first, LocalSocket):
        # Any of the processes could make it wait for connections, and all others with it.
        first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _ACCEPT_S)
        return [first] * count
    if not reuse_port:  # it has shown that nobody else listens there
        port = first.getsockname()[1]
        first.close()
        first = bind(address, port, service, reuse_port=True)
    bound = [first]
    try:
        while len(bound) < count:
            bound.append(bind(address, first.getsockname()[1], service, reuse_port=True))
    except ServerError:
        for sock in bound:
            sock.close()
        raise
    return bound


def listens(sock: socket.socket) -> bool:
    """False if a listening socket was shut down, by another process that has it."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and not poll.poll(0)


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


LONGEST_PATH_BYTES = 107
"""The kernel's limit (``sun_path``), without the zero at its end."""

MODE = 0o660
"""The server's user and group may connect, whatever the umask is."""

_LOCK_S = 5.0
_LOCK_PAUSE_S = 0.01


class LocalSocket(socket.socket):
    """A listening Unix-domain socket.

    A socket file whose server has gone is replaced. While this happens the directory is locked, so that of two servers
    that start at once, one does not remove the file of the other. A ServerError says that the path is unusable or too
    long, is no socket, or that a server listens there. Slashes at its beginning count as one, as in gRPC's addresses.
    """

    def __init__(self, address: str, service: str, backlog: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._place = _place(address)
            with _locked(self._place.parent):
                _remove_stale(self._place)
                os.fchmod(self.fileno(), 0)  # of the file that bind makes: nobody connects before its mode is right
                self.bind(str(self._place))
                self._identity: tuple[int, int] | None = _identity(self._place)
                self.listen(backlog)
                self._place.chmod(MODE)
        except (OSError, _UnusableError) as error:
            self.close()
            reason = str(error) if isinstance(error, _UnusableError) else error.strerror
            raise ServerError(f"failed to start {service} service: cannot listen on '{address}': {reason}") from None

    @property
    def address(self) -> str:
        """``unix:`` and the absolute path."""
        return f"{LOCAL_ADDRESS}{self._place}"

    def remove_file(self) -> None:
        """Remove the socket's file, unless another one has taken its place.

        To be called before the socket is closed.
        """
        identity, self._identity = self._identity, None  # once: without a socket, another file may get its number
        with suppress(OSError):
            if _identity(self._place) == identity:
                self._place.unlink()


class _UnusableError(Exception):
    """A path that cannot be the server's; the text follows the address in a message."""


def _place(address: str) -> Path:
    path = address.removeprefix(LOCAL_ADDRESS)
    if not path.strip("/") or path.endswith("/"):
        raise _UnusableError("it names no file. Write unix:/run/pybackend/http.sock, for example")
    place = Path(f"/{path.lstrip('/')}" if path.startswith("/") else path).absolute()
    size = len(os.fsencode(place))
    if size > LONGEST_PATH_BYTES:
        raise _UnusableError(
            f"its path has {size} bytes, and the system allows {LONGEST_PATH_BYTES}. Choose a shorter one"
        )
    return place


def _identity(place: Path) -> tuple[int, int]:
    found = place.lstat()
    return found.st_dev, found.st_ino


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock on a directory, which other servers take for the same purpose."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end_s = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise _UnusableError(f"another program has locked the directory {directory}") from None
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(place: Path) -> None:
    """Remove the socket file of a server that has gone."""
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _UnusableError("there is a file that is no socket. Remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(place))
        except ConnectionRefusedError:
            place.unlink()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EINPROGRESS}:
                raise
    raise _UnusableError("it is already in use. Stop the program that listens there, or choose another path")
