"""A real HAProxy before small servers that say their names, and the keys that they get."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pybackend.errors import ServerError
from pybackend_addons.ray.cluster import KEY_HEADER, Cluster, Report, Roster
from pybackend_addons.ray.entrance_access import EntranceFiles
from pybackend_addons.ray.haproxy import UNREACHED, Runtime, configuration, find_program, write_lists

DEADLINE_S = 60.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        told = {"key": self.headers[KEY_HEADER]}
        if UNREACHED in self.headers:
            told["unreached"] = self.headers[UNREACHED]
        body = json.dumps({"name": self.server.name, "path": self.path, **told}).encode()  # type: ignore[attr-defined]
        self.send_response(200 if self.headers[KEY_HEADER] == self.server.key else 401)  # type: ignore[attr-defined]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  http.server calls it

    def log_message(self, *_arguments: Any) -> None:
        pass


@contextlib.contextmanager
def named_server(name: str, key: str) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.name, server.key = name, key  # type: ignore[attr-defined]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Entrance:
    def __init__(self, cluster: Cluster, directory: Path, ports: dict[str, int]) -> None:
        self.cluster = cluster
        self.directory = directory
        self.runtime = Runtime(directory / "admin", cluster, directory)
        self.files = EntranceFiles(cluster, directory, self.runtime.ask)
        self.ports = ports

    def apply(self, *names: str, leaving: frozenset[int] = frozenset(), sequences: tuple[str, ...] = ()) -> None:
        asyncio.run(self.runtime.apply(self.roster(*names, leaving=leaving, sequences=sequences)))

    def roster(self, *names: str, leaving: frozenset[int] = frozenset(), sequences: tuple[str, ...] = ()) -> Roster:
        places = {
            seat: Report(name, "n", "127.0.0.1", self.ports[name], self.ports[name], 1, "1")
            for seat, name in enumerate(names, start=1)
        }
        control = ("127.0.0.1", self.ports["coordinator"], self.ports["coordinator"])
        return Roster(1, True, places, leaving, frozenset(sequences), control)

    def ask(self, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.http_port, timeout=DEADLINE_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST" if body else "GET", path, body or None, named)
        response = connection.getresponse()
        document = json.loads(response.read())
        connection.close()
        return response.status, document

    def wait_for(self, *names: str) -> None:
        """Until each of these, and no other, has answered."""
        end = time.monotonic() + DEADLINE_S
        while {self.ask("/v2/models/a")[1].get("name") for _ in range(6)} != set(names):
            assert time.monotonic() < end

    def continue_sequence(self, number: int | str, model: str = "counter") -> str:
        body = json.dumps({"inputs": [], "parameters": {"sequence_id": number}}).encode()
        return self.ask(f"/v2/models/{model}/infer", body)[1]["name"]


@contextlib.contextmanager
def started(cluster: Cluster, name: str, before: Entrance | None = None) -> Iterator[Entrance]:
    """HAProxy with the configuration of an entrance, and a server for each of its two replicas and the coordinator.

    ``before``: takes this one's ports over, and begins with its replica.
    """
    try:
        program = find_program()
    except ServerError as error:
        pytest.skip(str(error))
    directory = Path(f"/tmp/{name}-{free_port()}")  # sockets have short paths
    directory.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        ports = {name: stack.enter_context(named_server(name, cluster.key)) for name in ("one", "two", "coordinator")}
        found = Entrance(cluster, directory, ports)
        write_lists(directory, cluster)
        roster = None if before is None else before.roster("one")
        flags = [] if before is None else ["-x", str(before.directory / "admin")]
        (directory / "haproxy.cfg").write_text(configuration(cluster, directory, roster))
        process = subprocess.Popen(
            [program, "-db", "-f", str(directory / "haproxy.cfg"), *flags], stderr=subprocess.PIPE
        )
        stack.callback(process.communicate)
        stack.callback(process.kill)
        end = time.monotonic() + DEADLINE_S
        while not (directory / "admin").exists():
            assert time.monotonic() < end
            assert process.poll() is None, process.stderr.read().decode()  # type: ignore[union-attr]
        yield found


def cluster_with(**settings: Any) -> Cluster:
    ports = {f"{name}_port": free_port() for name in ("http", "grpc", "metrics")}
    return Cluster((), max_replicas=2, key="secret", **ports, **settings)
