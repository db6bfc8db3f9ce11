"""The servers of an analysis: one that runs already, or one for each number of front ends, of which one runs at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

from pybackend.errors import ServerError
from pybackend.ports import free_ports
from pybackend_client.connection import Connection
from pybackend_client.figures import Source
from pybackend_tools.analyzer.measurement import Bench, MeasurementError, Target

TIMEOUT_S = 300.0
"""How long a server may take to start, or to answer."""

_AGAIN_S = 0.05


@dataclass(frozen=True)
class Served:
    """A server, and the clients that measure it."""

    connection: Connection
    bench: Bench


class Servers:
    """Servers of the same models. A context manager: its end is that of the servers that it has started.

    ``url``, ``metrics_url``: of the server that runs already. The analysis ends with it. ``command``: starts another
    one.
    """

    def __init__(
        self, url: str, metrics_url: str, targets: Sequence[Target], varied: Sequence[str], command: Sequence[str]
    ) -> None:
        self._urls = (url, metrics_url)
        self._first = Connection(url, TIMEOUT_S)
        self._targets = targets
        self._varied = varied
        self._command = command
        self._running = ExitStack()
        self._served: dict[int | None, Served] = {}  # by the number of front ends; at most one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def at(self, front_ends: int | None) -> Served:
        """The server with so many front ends; the one that runs already for None.

        Raises MeasurementError if it cannot be started, and ServerError if the one that runs already has gone.
        """
        self._first.get_bytes("/v2/health/live")
        if front_ends not in self._served:
            self._served.clear()
            self._running.close()
            urls = self._urls if front_ends is None else self._running.enter_context(self._started(front_ends))
            connection = Connection(urls[0], TIMEOUT_S)
            source = Source(connection, Connection(urls[1], TIMEOUT_S))
            bench = self._running.enter_context(Bench(urls[0], source, self._targets, self._varied))
            self._served[front_ends] = Served(connection, bench)
        return self._served[front_ends]

    @contextmanager
    def _started(self, front_ends: int) -> Iterator[tuple[str, str]]:
        port, metrics_port = free_ports("127.0.0.1", 2)
        flags = [f"--http-port={port}", f"--metrics-port={metrics_port}", f"--front-ends={front_ends}"]
        process = subprocess.Popen([*self._command, *flags], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            _wait_until_ready(process, Connection(f"http://127.0.0.1:{port}", TIMEOUT_S), flags[-1])
            yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}"
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], connection: Connection, flag: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            connection.get_bytes("/v2/health/ready")
            return
        except ServerError:  # nobody listens yet
            if process.poll() is not None:
                raise MeasurementError(f"a server with {flag} ended with exit status {process.returncode}") from None
            if time.monotonic() > end_s:
                raise MeasurementError(f"a server with {flag} was not ready after {TIMEOUT_S:g} s") from None
        time.sleep(_AGAIN_S)
