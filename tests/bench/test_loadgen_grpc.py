"""The load generator for gRPC against grpcio's server: what it reports must be what the server saw."""

import os
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.bench import loadgen, procstat
from tests.bench.loadgen import GrpcCall, Load, LoadError

SHORT = Load(connections=2, duration_s=0.2, warm_up_s=0.05)
UNARY, STREAMING = "/bench.Echo/Unary", "/bench.Echo/Streaming"
REQUEST, REPLY = b"0123456789", b"yes"
REPLY_BYTES = 5 + len(REPLY)  # a message has a prefix

Answer = Callable[[int], Sequence[bytes]]
"""The messages that answer the n-th request; it raises to end the call with an error."""


class Refusal(Exception):
    """The call ends with the status UNAVAILABLE."""


class CountingServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves the two methods, and keeps the requests that it has seen."""

    def __init__(self, answer: Answer) -> None:
        self.port = 0
        self.requests: list[bytes] = []
        self.traces: set[str] = set()
        self._answer = answer
        self._lock = threading.Lock()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == UNARY:
            return grpc.unary_unary_rpc_method_handler(lambda request, call: self._answers(request, call)[0])
        if details.method == STREAMING:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return None

    def _stream(self, requests: Iterator[bytes], call: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            yield from self._answers(request, call)

    def _answers(self, request: bytes, call: grpc.ServicerContext) -> Sequence[bytes]:
        with self._lock:
            self.requests.append(request)
            self.traces.update(value for name, value in call.invocation_metadata() if name == "traceparent")
            number = len(self.requests)
        try:
            return self._answer(number)
        except Refusal:
            call.abort(grpc.StatusCode.UNAVAILABLE, "later")
            raise


@contextmanager
def serving(answer: Answer, **options: int) -> Iterator[CountingServer]:
    handler = CountingServer(answer)
    with ThreadPoolExecutor(4) as threads:
        named = [(f"grpc.{name}", value) for name, value in options.items()]
        server = grpc.server(threads, [handler], options=[*named, ("grpc.max_receive_message_length", -1)])
        handler.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield handler
        finally:
            server.stop(None).wait()


@pytest.fixture(scope="module", autouse=True)
def program() -> Path:
    try:
        return loadgen.build("loadgen_grpc")
    except LoadError as error:
        pytest.skip(str(error))


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    path = tmp_path / "request"
    path.write_bytes(REQUEST)
    return path


def drive(port: int, request_file: Path, call: GrpcCall, load: Load = SHORT) -> loadgen.LoadResult:
    """The server lives in this very process, whose clock will do."""
    return loadgen.drive(port, procstat.ProcessTree(os.getpid(), ()), request_file, load, call)


def test_messages_in_turns_and_a_trace_of_its_own_for_each_call(tmp_path: Path) -> None:
    file = tmp_path / "requests"
    file.write_bytes(b"".join(len(each).to_bytes(4, "big") + each for each in (b"first", b"the second")))
    with serving(lambda _: [REPLY]) as server:
        processes = procstat.ProcessTree(os.getpid(), ())
        result = loadgen.drive(server.port, processes, file, SHORT, GrpcCall(UNARY, traced=True), in_turns=2)
    assert result.errors == 0
    assert set(server.requests) == {b"first", b"the second"}
    assert len(server.traces) >= len(server.requests) - SHORT.connections  # the first call of a connection has none
    assert {trace[:36] for trace in server.traces} == {"00-4bf92f3577b34da6a3ce929d0e0e4736-"}
    assert {trace[-3:] for trace in server.traces} == {"-01"}


def refuse(_number: int) -> Sequence[bytes]:
    raise Refusal


@pytest.mark.parametrize("streams", [1, 8])
def test_every_message_is_the_file_and_every_reply_is_counted(request_file: Path, streams: int) -> None:
    with serving(lambda _: [REPLY]) as server:
        result = drive(server.port, request_file, GrpcCall(UNARY, streams))
    assert set(server.requests) == {REQUEST}
    assert 0 < result.replies <= len(server.requests)
    assert (result.errors, result.first_error, result.reply_bytes) == (0, "", REPLY_BYTES)
    assert 0 < result.p50_us <= result.p90_us <= result.p99_us <= result.max_us
    assert result.infer_per_s == pytest.approx(result.replies / result.seconds, rel=1e-3)


def test_a_call_that_ends_with_an_error_is_no_reply(request_file: Path) -> None:
    def every_other(number: int) -> Sequence[bytes]:
        return [REPLY] if number % 2 else refuse(number)

    with serving(every_other) as server:
        result = drive(server.port, request_file, GrpcCall(UNARY))
    assert result.replies > 0
    assert result.errors > 0
    assert result.replies + result.errors <= len(server.requests)
    assert result.first_error == "a status without a message"


def test_nothing_but_errors_is_no_result(request_file: Path) -> None:
    with serving(refuse) as server, pytest.raises(LoadError, match="no request succeeded: a status without a message"):
        drive(server.port, request_file, GrpcCall(UNARY))


def test_a_method_that_the_server_has_not_is_an_error(request_file: Path) -> None:
    with serving(refuse) as server, pytest.raises(LoadError, match="no request succeeded"):
        drive(server.port, request_file, GrpcCall("/bench.Echo/Other"))
    assert not server.requests


def test_all_messages_of_a_stream_answer_one_request(request_file: Path) -> None:
    with serving(lambda _: [REPLY] * 3) as server:
        result = drive(server.port, request_file, GrpcCall(STREAMING, streams=2, messages=3))
    assert set(server.requests) == {REQUEST}
    assert 0 < result.replies <= len(server.requests)
    assert (result.errors, result.reply_bytes) == (0, 3 * REPLY_BYTES)


def test_a_stream_that_ends_early_is_an_error_and_is_opened_again(request_file: Path) -> None:
    def every_third(number: int) -> Sequence[bytes]:
        return [REPLY, REPLY] if number % 3 else refuse(number)

    with serving(every_third) as server:
        result = drive(server.port, request_file, GrpcCall(STREAMING, messages=2))
    assert result.replies > 0
    assert result.errors > 0
    assert result.replies + result.errors <= len(server.requests)
    assert result.first_error == "a status without a message"


def test_a_server_that_closes_the_connection_ends_the_run(request_file: Path) -> None:
    class Closing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(64 * 1024)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Closing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with pytest.raises(LoadError, match=r"the server closed the connection|Connection reset|Broken pipe"):
                drive(server.server_address[1], request_file, GrpcCall(UNARY))
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_says_goodbye_ends_the_run(request_file: Path) -> None:
    load = Load(connections=1, duration_s=30, warm_up_s=0)
    with (
        serving(lambda _: [REPLY], max_connection_age_ms=100, max_connection_age_grace_ms=100) as server,
        pytest.raises(LoadError, match="the server says goodbye: max_age"),
    ):
        drive(server.port, request_file, GrpcCall(UNARY), load)
    assert server.requests


def test_a_server_that_is_not_there_is_named(request_file: Path) -> None:
    with serving(refuse) as server:
        port = server.port
    with pytest.raises(LoadError, match=f"cannot connect to 127.0.0.1:{port}"):
        drive(port, request_file, GrpcCall(UNARY))


def test_large_messages_go_through_the_windows_in_both_directions(tmp_path: Path) -> None:
    size = 24 << 20  # more than any window at first
    path = tmp_path / "request"
    path.write_bytes(bytes(size))
    reply = bytes(size)
    with serving(lambda _: [reply], max_send_message_length=-1) as server:
        result = drive(server.port, path, GrpcCall(UNARY), Load(2, 0.2, 0, requests=4))
    assert {len(request) for request in server.requests} == {size}
    assert result.replies >= 4
    assert (result.errors, result.reply_bytes) == (0, size + 5)
