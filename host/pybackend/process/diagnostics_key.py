"""The key to a server's diagnostics: it lies where its user's programs read it, and where no model does.

A server that is not root shares its user, and the loopback address, with its models: neither file modes nor addresses
tell them from the operator. The sandbox hides the server's own directory from them, so the key lies there, for as long
as the server runs; clients such as the console find it by the address to which they are connected.
"""

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

from pybackend.process.bundle import server_directories
from pybackend.sandbox.file_rules import is_open_to_models
from pybackend.sandbox.runtime_directory import RuntimeDirectory

log = logging.getLogger(__name__)

HEADER = "x-pybackend-diagnostics"
_ROUTES, _PLACE = "/v2/diagnostics/", "diagnostics"


class DiagnosticsKey:
    """The key of one server, whose own directory is given."""

    def __init__(self, server_directory: Path) -> None:
        self.value = secrets.token_urlsafe(32)
        self._directory = RuntimeDirectory([server_directory / _PLACE])

    @property
    def headers(self) -> dict[str, str]:
        """The header that opens the diagnostics, unless the operator has chosen another one."""
        return {HEADER: self.value}

    def publish(self, address: str) -> None:
        """Write the key to where programs of the server's user find it by the address of its port for HTTP. Blocking.

        It is not written to where models could read it.
        """
        (place,) = self._directory.places
        if is_open_to_models(place):
            log.info("no program is given the key to the diagnostics: models may read and write where %s lies", place)
            return
        try:
            file = self._directory.make() / _file_name(address)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="ascii") as opened:
                opened.write(f"{self.value}\n")
        except OSError as error:
            log.warning("cannot write the key to the diagnostics below %s: %s", place, error.strerror or error)

    def close(self) -> None:
        """Remove the file."""
        self._directory.close()


def find_headers(path: str, connected: socket.socket) -> dict[str, str]:
    """The header that a request for a path needs at the server at the other end, if this user has its key."""
    key = key_of(connected) if path.startswith(_ROUTES) else ""
    return {HEADER: key} if key else {}


def key_of(connected: socket.socket) -> str:
    """The key of the server at the other end of a connection, ``""`` if this user has none for it.

    The connection's own addresses count, and no name: another program may listen at another address of the same name.
    """
    names = [_file_name(address) for address in _addresses_of(connected)]
    # Models and other users may put links to any file where they can write.
    places = [each / _PLACE for each in server_directories() if not is_open_to_models(each / _PLACE)]
    directories = [inner for place in places for outer in _inside(place) for inner in _inside(outer)]
    found = [file for each in directories for name in names if (file := each / name).exists()]
    try:
        # Those of servers that were killed stay until the next one starts.
        return max(found, key=lambda file: file.stat().st_mtime_ns).read_text("ascii").strip() if found else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _inside(directory: Path) -> list[Path]:
    """The contents of a directory; none if it is gone, as that of a server that has ended meanwhile."""
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _addresses_of(connected: socket.socket) -> Iterator[str]:
    """How a server that listens at the other end may have written its address.

    One that takes all connections of IPv4 takes none of IPv6: anybody may listen there, at the same port.
    """
    peer = connected.getpeername()
    if connected.family == socket.AF_UNIX:
        yield f"unix:{os.fsdecode(peer)}"
        return
    host, port = peer[:2]
    yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if ip_address(host).is_loopback or host == connected.getsockname()[0]:
        yield f"[::]:{port}"
        if connected.family == socket.AF_INET:
            yield f"0.0.0.0:{port}"


def _file_name(address: str) -> str:
    return quote(address, safe=":")  # brackets would be a pattern
