"""Starts the servers that are measured, waits until they are ready, and stops them."""

import compileall
import http.client
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.bench import procstat, reference

PYBACKEND = "pybackend"
ECHO = "uvicorn echo"
REFERENCE = "reference"

_PACKAGES = ("pybackend", "pybackend_wire")
"""What the server's own process imports of ours."""
_ECHO_PROGRAM = Path(__file__).with_name("echo.py")
_LISTENING = re.compile(r"Started HTTPService at 127\.0\.0\.1:(\d+)")
_LISTENING_GRPC = re.compile(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)")
_POLL_PERIOD_S = 0.003
_READY_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 40.0


class ServerError(Exception):
    """A server did not become ready; the text holds the end of its log."""


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready.

    Attributes:
        name: how tables call it.
        port: its HTTP port on 127.0.0.1.
        pid: its first process.
        ready_s: from the start of that process to the first answer 200 on /v2/health/ready.
        grpc_port: its gRPC port, None if it was started without.
    """

    name: str
    port: int
    pid: int
    ready_s: float
    grpc_port: int | None = None

    def tree(self) -> procstat.ProcessTree:
        """Its processes as they are now."""
        return procstat.process_tree(self.pid)


@dataclass(frozen=True)
class Launcher:
    """A kind of server that loads a model repository, and how to start one.

    Attributes:
        name: how tables call it.
        start: context manager that serves the repository it is given, over HTTP.
        start_with_grpc: the same, over HTTP and gRPC.
    """

    name: str
    start: Callable[[Path], AbstractContextManager[RunningServer]]
    start_with_grpc: Callable[[Path], AbstractContextManager[RunningServer]]


def pybackend_launcher(name: str = PYBACKEND, options: Sequence[str] = ()) -> Launcher:
    """pybackend of the running interpreter.

    Args:
        name: how tables call it.
        options: of ``serve``, beside those that say where to listen.
    """
    _compile_sources()

    @contextmanager
    def start(repository: Path, *, grpc: bool = False) -> Iterator[RunningServer]:
        listening = ["--http-address", "127.0.0.1", "--http-port", "0", "--metrics-port", "0"]
        listening += ["--grpc-address", "127.0.0.1", "--grpc-port", "0"] if grpc else ["--allow-grpc", "false"]
        command = [sys.executable, "-m", "pybackend", "serve", str(repository), *listening, *options]
        with running(name, command) as server:
            yield server

    return Launcher(name, start, partial(start, grpc=True))


def _compile_sources() -> None:
    """Write the bytecode that comes with an installed package; in a checkout a start may else compile everything anew."""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for directory in spec.submodule_search_locations or ():
            compileall.compile_dir(directory, quiet=2)


def reference_launcher() -> Launcher:
    """The reference server; installs it at first use.

    Raises:
        ReferenceUnavailableError: it cannot be had here.
    """
    installation = reference.install(reference.cache_directory())

    @contextmanager
    def start(repository: Path, *, grpc: bool = False) -> Iterator[RunningServer]:
        http_port, metrics_port, grpc_port = free_ports(3)
        command = reference.command(installation, repository, http_port, metrics_port, grpc_port if grpc else None)
        with running(REFERENCE, command, http_port, installation.environment) as server:
            yield replace(server, grpc_port=grpc_port if grpc else None)

    return Launcher(REFERENCE, start, partial(start, grpc=True))


@contextmanager
def echo(reply_bytes: int) -> Iterator[RunningServer]:
    """A bare uvicorn that answers so many bytes to whatever is sent."""
    # -P keeps this folder, whose modules have everyday names, off the import path.
    with running(ECHO, [sys.executable, "-P", str(_ECHO_PROGRAM), str(reply_bytes)]) as server:
        yield server


@contextmanager
def running(
    name: str, command: list[str], port: int | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    """Run a server; without a ``port`` the server chooses one and prints it."""
    with tempfile.NamedTemporaryFile(prefix="bench-", suffix=".log") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log.fileno(),
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            port = _wait_until_ready(name, process, Path(log.name), port, began + _READY_TIMEOUT_S)
            ready_s = time.perf_counter() - began
            yield RunningServer(name, port, process.pid, ready_s, _announced_port(Path(log.name), _LISTENING_GRPC))
        finally:
            _stop(process)


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], log: Path, port: int | None, deadline: float) -> int:
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise ServerError(f"{name} ended with status {process.returncode}: {_tail(log)}")
        port = port or _announced_port(log)
        if port and _is_ready(port):
            return port
        time.sleep(_POLL_PERIOD_S)
    raise ServerError(f"{name} was not ready after {_READY_TIMEOUT_S:.0f} s: {_tail(log)}")


def _announced_port(log: Path, pattern: re.Pattern[str] = _LISTENING) -> int | None:
    found = pattern.search(log.read_text(encoding="utf-8", errors="replace"))
    return int(found[1]) if found else None


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False  # it does not listen yet
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to stop; what is left of its session after that is killed."""
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} did not stop within {_STOP_TIMEOUT_S:.0f} s and is killed", file=sys.stderr)
    with suppress(ProcessLookupError):  # the usual case: nothing is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-2000:] or "(it printed nothing)"


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, for a server that cannot choose one by itself."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
