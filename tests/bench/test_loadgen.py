"""The load generator against real sockets: what it reports must be what the server saw."""

import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench import loadgen, procstat, servers
from tests.bench.loadgen import Load, LoadError

SHORT = Load(connections=2, duration_s=0.2, warm_up_s=0.05)
BODY = b"0123456789"
REQUEST = b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes"

Replies = Callable[[int], bytes]


class ScriptedServer(socketserver.ThreadingTCPServer):
    """Reads whole requests and answers the n-th with what a function says; a reply that announces it closes."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, replies: Replies) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedConnection)
        self.replies = replies
        self.requests: list[bytes] = []


class ScriptedConnection(socketserver.StreamRequestHandler):
    server: ScriptedServer

    def handle(self) -> None:
        while request := self.rfile.read(len(REQUEST)):
            self.server.requests.append(request)
            reply = self.server.replies(len(self.server.requests))
            self.wfile.write(reply)
            if b"close" in reply:
                return


@contextmanager
def scripted(replies: Replies) -> Iterator[ScriptedServer]:
    with ScriptedServer(replies) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module", autouse=True)
def program() -> Path:
    try:
        return loadgen.build()
    except LoadError as error:
        pytest.skip(str(error))


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    path = tmp_path / "request"
    path.write_bytes(REQUEST)
    return path


def no_processes() -> procstat.ProcessTree:
    """The scripted server lives in this very process, whose clock will do."""
    return procstat.ProcessTree(os.getpid(), ())


def drive(server: ScriptedServer, request_file: Path, load: Load = SHORT) -> loadgen.LoadResult:
    return loadgen.drive(server.server_address[1], no_processes(), request_file, load)


def test_every_request_is_the_file_and_every_reply_is_counted(request_file: Path) -> None:
    with scripted(lambda _: OK) as server:
        result = drive(server, request_file)
    assert set(server.requests) == {REQUEST}
    assert 0 < result.replies <= len(server.requests)
    assert (result.errors, result.first_error, result.reply_bytes) == (0, "", 3)
    assert 0 < result.p50_us <= result.p90_us <= result.p99_us <= result.max_us
    assert result.infer_per_s == pytest.approx(result.replies / result.seconds, rel=1e-3)


def test_several_requests_are_sent_in_turns(tmp_path: Path) -> None:
    each = [REQUEST.replace(b"0", digit) for digit in (b"a", b"b", b"c")]
    file = tmp_path / "requests"
    file.write_bytes(b"".join(len(request).to_bytes(4, "big") + request for request in each))
    with scripted(lambda _: OK) as server:
        port = server.server_address[1]
        result = loadgen.drive(port, no_processes(), file, Load(1, 0.2, 0.05), in_turns=3)
        assert result.errors == 0
        assert server.requests[:6] == each * 2
        with pytest.raises(LoadError, match="fewer than 4 requests"):
            loadgen.drive(port, no_processes(), file, SHORT, in_turns=4)


def test_a_head_that_arrives_in_pieces_is_read_like_any_other(request_file: Path) -> None:
    class Dribbling(ScriptedConnection):
        def handle(self) -> None:
            while self.rfile.read(len(REQUEST)):
                for start in range(0, len(OK), 5):
                    self.wfile.write(OK[start : start + 5])

    with scripted(lambda _: OK) as server:
        server.RequestHandlerClass = Dribbling
        result = drive(server, request_file)
    assert result.replies > 0
    assert result.errors == 0


def test_other_statuses_are_errors_and_the_first_is_quoted(request_file: Path) -> None:
    busy = b'HTTP/1.1 503 Busy\r\ncontent-length: 7\r\n\r\n"later"'
    with scripted(lambda number: busy if number % 2 else OK) as server:
        result = drive(server, request_file)
    assert result.errors > 0
    assert result.replies > 0
    assert result.first_error == 'status 503: "later"'


def test_nothing_but_errors_is_no_result(request_file: Path) -> None:
    refused = b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\nno"
    with scripted(lambda _: refused) as server, pytest.raises(LoadError, match="no request succeeded: status 400: no"):
        drive(server, request_file)


def test_a_connection_that_the_server_closes_is_opened_again(request_file: Path) -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with scripted(lambda number: closing if number % 10 == 0 else OK) as server:
        result = drive(server, request_file)
    assert result.replies > 10
    assert result.errors == 0


def test_a_reply_without_a_length_is_refused(request_file: Path) -> None:
    endless = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    with scripted(lambda _: endless) as server, pytest.raises(LoadError, match="a reply without Content-Length"):
        drive(server, request_file)


def test_a_server_that_is_not_there_is_named(request_file: Path) -> None:
    with scripted(lambda _: OK) as server:
        port = server.server_address[1]
    with pytest.raises(LoadError, match=f"cannot connect to 127.0.0.1:{port}"):
        loadgen.drive(port, no_processes(), request_file, SHORT)


def test_large_bodies_go_through_in_both_directions(tmp_path: Path) -> None:
    size = 24 << 20  # several times what a socket takes at once
    path = tmp_path / "request"
    path.write_bytes(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
    with servers.echo(size) as echo:
        result = loadgen.drive(echo.port, echo.tree(), path, Load(2, 0.2, 0, requests=4))
    assert result.replies >= 4
    assert result.errors == 0
    assert result.reply_bytes == size
    assert result.bytes_received >= 4 * size
    assert result.host_cpu_us > 0
