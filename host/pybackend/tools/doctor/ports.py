"""Checks whether the server's ports are free, by binding them as the server does."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pybackend.errors import ServerError
from pybackend.frontend.listening import address_of, bind, release
from pybackend.observability.log_lines import one_line
from pybackend.settings import LOCAL_ADDRESS, GrpcSettings, HttpSettings
from pybackend.tools.doctor.finding import Finding, fail, ok


def examine(http: HttpSettings, grpc: GrpcSettings) -> Iterator[Finding]:
    """Check each port that the server would open."""
    if http.enabled:
        yield _examined(http.address, http.port, "HTTP", reuse_port=http.reuse_port)
    if grpc.enabled:
        yield _examined(grpc.address, grpc.port, "GRPC", reuse_port=grpc.reuse_port)
    if http.metrics_enabled:
        yield _examined(http.metrics_address, http.metrics_port, "Metrics")


def _examined(address: str, port: int, service: str, *, reuse_port: bool = False) -> Finding:
    layer = f"{service} port"
    place = address if address.startswith(LOCAL_ADDRESS) else f"{address}:{port}"
    try:
        sock = bind(address, port, service, reuse_port=reuse_port)
    except ServerError as error:
        server = "" if place == address else running_server(port)
        if server:
            advice = f"Stop that server, or choose another port with --{service.lower()}-port; `pybackend status` asks that one"
            return fail(layer, f"{place} belongs to a running pybackend, {server}", advice)
        return fail(layer, f"{place} cannot be opened", str(error))
    try:
        return ok(layer, f"{place} is free" if port else f"any free one, such as {address_of(sock)}")
    finally:
        release(sock)


_LISTENS = "0A"
"""A state of sockets in /proc/net/tcp."""

_COMMANDS = frozenset({"serve", "dev"})
_LONGEST_COMMAND = 100


def running_server(port: int) -> str:
    """The server of ours that listens on a port of this machine, as a phrase; ``""`` if none does that this user may see."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").iterdir():
        if not sockets or not process.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            command = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
            names = [Path(word).name for word in command]
            if "pybackend" not in names or not _COMMANDS & set(names[names.index("pybackend") :]):
                continue
            if any(str(each.readlink()) in sockets for each in (process / "fd").iterdir()):
                text = one_line(shlex.join(["pybackend", *command[names.index("pybackend") + 1 :]]))
                return f"process {process.name}, `{text[:_LONGEST_COMMAND]}`"
    return ""


def _listening(port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):  # no such protocol here
            for line in Path(table).read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENS and cells[1].endswith(f":{port:04X}"):
                    yield cells[9]
