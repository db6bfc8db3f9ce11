"""Unix-domain sockets: a file for local clients, made and removed without ever removing a file of another kind."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pybackend.errors import ServerError
from pybackend.settings import LOCAL_ADDRESS

LONGEST_PATH_BYTES = 107
"""The kernel's limit (``sun_path``), without the zero at its end."""

MODE = 0o660
"""The server's user and group may connect, whatever the umask is."""

_LOCK_S = 5.0
_LOCK_PAUSE_S = 0.01


class LocalSocket(socket.socket):
    """A listening Unix-domain socket.

    A socket file whose server has gone is replaced. While this happens the directory is locked, so that of two servers that
    start at once, one does not remove the file of the other.

    Args:
        address: ``unix:`` and the path of the file; slashes at its beginning count as one, as in gRPC's addresses.
        service: ``HTTP``, ``GRPC`` or ``Metrics``, for messages.
        backlog: connections that may wait.

    Raises:
        ServerError: the path is unusable or too long, is no socket, or a server listens there.
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
        """Remove the socket's file, unless another one has taken its place. To be called before the socket is closed."""
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
