"""A real HAProxy before small servers that say their names."""

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
from pybackend.ray.cluster import KEY_HEADER, Cluster, Report, Roster
from pybackend.ray.haproxy import Runtime, configuration, empty_lists, find_program

DEADLINE_S = 60.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"name": self.server.name, "path": self.path, "key": self.headers[KEY_HEADER]}).encode()  # type: ignore[attr-defined]
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
    def __init__(self, cluster: Cluster, runtime: Runtime, ports: dict[str, int]) -> None:
        self.cluster = cluster
        self.runtime = runtime
        self.ports = ports

    def apply(self, *names: str, leaving: frozenset[int] = frozenset(), sequences: tuple[str, ...] = ()) -> None:
        places = {
            seat: Report(name, "n", "127.0.0.1", self.ports[name], self.ports[name], 1, "1")
            for seat, name in enumerate(names, start=1)
        }
        control = ("127.0.0.1", self.ports["coordinator"], self.ports["coordinator"])
        asyncio.run(self.runtime.apply(Roster(1, True, places, leaving, frozenset(sequences), control)))

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


@pytest.fixture(scope="module")
def entrance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entrance]:
    try:
        program = find_program()
    except ServerError as error:
        pytest.skip(str(error))
    directory = Path(f"/tmp/{tmp_path_factory.mktemp('e').name}-{free_port()}")  # sockets have short paths
    directory.mkdir(mode=0o700)
    cluster = Cluster((), max_replicas=2, http_port=free_port(), grpc_port=free_port(), metrics_port=free_port())
    empty_lists(directory)
    (directory / "haproxy.cfg").write_text(configuration(cluster, directory))
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(named_server(name, cluster.key)) for name in ("one", "two", "coordinator")}
        process = subprocess.Popen([program, "-db", "-f", str(directory / "haproxy.cfg")], stderr=subprocess.PIPE)
        found = Entrance(cluster, Runtime(directory / "admin", cluster, directory), ports)
        end = time.monotonic() + DEADLINE_S
        while not (directory / "admin").exists():
            assert time.monotonic() < end
            assert process.poll() is None, process.stderr.read().decode()  # type: ignore[union-attr]
        yield found
        process.kill()
        process.communicate()
    shutil.rmtree(directory)


def test_requests_go_to_replicas_and_changes_to_the_coordinator(entrance: Entrance) -> None:
    entrance.apply("one", "two")
    entrance.wait_for("one", "two")
    to_coordinator = [
        ("/v2/repository/models/a/load", b"{}"), ("/v2/repository/models/ns%3A%3Aa/unlo%61d", b"{}"), ("/v2/logging", b"{}"),
        ("/v2/models/a/trace/setting", b"{}"), ("/v2/models/a/versions/1/stats", b""), ("/v2/health/ready", b""),
    ]  # fmt: skip
    assert [entrance.ask(path, body)[1]["name"] for path, body in to_coordinator] == ["coordinator"] * 6
    for path, body in (("/v2/logging", b""), ("/v2/repository/index", b"{}"), ("/v2/models/a/infer", b"{}")):
        assert entrance.ask(path, body)[1]["name"] in {"one", "two"}


def test_a_key_of_the_client_does_not_pass(entrance: Entrance) -> None:
    entrance.apply("one", "two")
    entrance.wait_for("one", "two")
    status, document = entrance.ask("/v2/models/a", x_api_key="guess")
    assert (status, document["key"]) == (200, entrance.cluster.key)


def test_shared_memory_is_refused(entrance: Entrance) -> None:
    status, document = entrance.ask("/v2/systemsharedmemory/region/a/register", b"{}")
    assert status == 400
    assert "each request may go to another machine" in document["error"]


def test_sequences_stay_where_they_began(entrance: Entrance) -> None:
    entrance.apply("one", "two", sequences=("counter",))
    entrance.wait_for("one", "two")
    began = {number: entrance.continue_sequence(number) for number in (*range(1, 20), "name")}
    assert set(began.values()) == {"one", "two"}
    assert {number: entrance.continue_sequence(number) for number in began} == began
    entrance.apply("one", "two", leaving=frozenset({1}), sequences=("counter",))
    entrance.wait_for("two")
    assert {number: entrance.continue_sequence(number) for number in began} == began
    assert {entrance.continue_sequence(number) for number in range(100, 110)} == {"two"}


def test_a_sequence_that_cannot_be_read_is_refused(entrance: Entrance) -> None:
    entrance.apply("one", "two", sequences=("counter",))
    entrance.wait_for("one", "two")
    long = json.dumps({"inputs": [{"data": "x" * 100_000}], "parameters": {"sequence_id": 5}}).encode()
    for body, headers in ((long, {}), (b"{}", {"content_encoding": "gzip"})):
        status, document = entrance.ask("/v2/models/counter/infer", body, **headers)
        assert (status, "the correlation id of this request is not within" in document["error"]) == (400, True)
    assert entrance.ask("/v2/models/other/infer", long)[0] == 200


def test_without_replicas_the_answer_says_so(entrance: Entrance) -> None:
    entrance.apply()
    end = time.monotonic() + DEADLINE_S
    while (answer := entrance.ask("/v2/models/a"))[0] == 200:
        assert time.monotonic() < end
    assert answer == (503, {"error": "no replica can take this request now: try again"})
