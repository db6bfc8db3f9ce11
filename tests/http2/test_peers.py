"""Clients of other projects over real sockets: curl, nghttp, h2load and grpcio, against the smallest server on our
connection."""

import asyncio
import dataclasses
import hashlib
import re
import shutil

import grpc
import pytest

from pybackend_http2 import Config, HeaderBlock, RemoteProtocolError, ServerConnection
from tests.support.http2 import receive_all

OK = HeaderBlock([(b":status", b"200"), (b"content-type", b"application/octet-stream")])
NOT_FOUND = HeaderBlock([(b":status", b"404")])
CHECKED = HeaderBlock([(b"x-checked", b"yes")])

GRPC_OK = HeaderBlock([(b":status", b"200"), (b"content-type", b"application/grpc")])
GRPC_TRAILERS = HeaderBlock([(b"grpc-status", b"0")])

BIG_BYTES = 5_000_000
BIG = memoryview(bytes(range(251)) * (BIG_BYTES // 251 + 1))[:BIG_BYTES]

SMALL_WINDOWS = Config(stream_window_bytes=20_000, connection_window_bytes=70_000)
LARGE_WINDOWS = Config(stream_window_bytes=2**24, connection_window_bytes=2**26, max_frame_bytes=2**20)


class Exchange:
    """Answers one request: /echo repeats the body as it arrives, /length counts it, /big sends five megabytes."""

    def __init__(self, stream, head, ended):
        self.stream = stream
        self.path = head.path
        self.received = 0
        self.message = bytearray()
        if head.path == b"/big":
            stream.send_headers(OK)
            stream.send_data(BIG)
            stream.send_trailers(CHECKED)
        elif head.path in {b"/echo", b"/length"}:
            if head.path == b"/echo":
                stream.send_headers(OK)
            if ended:
                self._end()
        elif head.path == b"/grpc/Echo":
            assert not ended
        else:
            stream.send_headers(NOT_FOUND, end=True)

    def on_data(self, payload, ended, /):
        self.received += len(payload)
        if self.path == b"/echo":
            self.stream.send_data(bytes(payload))
        elif self.path == b"/grpc/Echo":
            self.message += payload
        self.stream.give_back(len(payload))
        if ended:
            self._end()

    def on_trailers(self, trailers, /):
        assert trailers == ((b"x-sum", b"1"),)
        self._end()

    def on_reset(self, code, error, /):
        assert error is None

    def on_drained(self):
        pass

    def _end(self):
        if self.path == b"/length":
            self.stream.respond(OK, str(self.received).encode(), CHECKED)
        elif self.path == b"/grpc/Echo":
            self.stream.respond(GRPC_OK, bytes(self.message), GRPC_TRAILERS)
        else:
            self.stream.send_trailers(CHECKED)


class ServerProtocol(asyncio.Protocol):
    """Moves bytes between a socket and a connection; writes once per turn, and only while the transport has room."""

    def __init__(self, config, errors):
        self.connection = ServerConnection(self, config)
        self.errors = errors
        self.has_room = True

    def connection_made(self, transport):
        self.transport = transport
        self.write()

    def data_received(self, data):
        try:
            receive_all(self.connection, data)
        except RemoteProtocolError as error:
            self.errors.append(error)
        self.write()

    def pause_writing(self):
        self.has_room = False

    def resume_writing(self):
        self.has_room = True
        self.write()

    def connection_lost(self, exc):
        self.connection.connection_lost()

    def write(self):
        while self.has_room and self.connection.has_output:
            self.transport.writelines(self.connection.take_output(100_000))
        if self.connection.is_finished:
            self.transport.close()

    def on_request(self, stream, head, ended, /):
        return Exchange(stream, head, ended)


def _serve(config, *command):
    """Run a program against a server; returns its exit status and output. ``{}`` in its arguments stands for the
    address."""

    async def run(address):
        arguments = [argument.replace("{}", f"http://{address}") for argument in command]
        program = await asyncio.create_subprocess_exec(
            *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            out, err = await asyncio.wait_for(program.communicate(), 40)
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        return program.returncode, out, err.decode()

    return _with_server(config, run)


def _with_server(config, client):
    """Return what a client returns that is given the address of a server."""

    async def run():
        errors = []
        server = await asyncio.get_running_loop().create_server(lambda: ServerProtocol(config, errors), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        try:
            result = await client(f"{host}:{port}")
        finally:
            server.close()
            await server.wait_closed()
        assert errors == []
        return result

    return asyncio.run(run())


def _needs(program, package):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is missing (Debian: {package})")


@pytest.fixture(params=[SMALL_WINDOWS, LARGE_WINDOWS], ids=["small windows", "large windows"])
def config(request):
    return request.param


@pytest.fixture
def upload(tmp_path):
    path = tmp_path / "upload"
    path.write_bytes(BIG)
    return path


@_needs("curl", "curl")
class TestCurl:
    CURL = ("curl", "--silent", "--show-error", "--http2-prior-knowledge", "--max-time", "30")

    def test_upload_and_download(self, config, upload):
        assert _serve(config, *self.CURL, "--data-binary", f"@{upload}", "{}/echo") == (0, bytes(BIG), "")

    def test_large_download(self, config):
        status, out, _ = _serve(config, *self.CURL, "{}/big")
        assert (status, hashlib.sha256(out).digest()) == (0, hashlib.sha256(BIG).digest())

    def test_trailers(self, config):
        status, out, _ = _serve(config, *self.CURL, "--include", "--data-binary", "hello", "{}/length")
        assert (status, out.split(b"\r\n")) == (
            0,
            [b"HTTP/2 200 ", b"content-type: application/octet-stream", b"", b"5x-checked: yes", b""],
        )

    def test_http_1_client_gets_an_end(self, config):
        with pytest.raises(AssertionError, match="this port speaks HTTP/2 without TLS only"):
            _serve(config, "curl", "--silent", "--http1.1", "--http0.9", "--max-time", "30", "{}/length")


@_needs("nghttp", "nghttp2-client")
class TestNghttp:
    def test_request_with_trailers_padding_and_continuation(self, config, upload):
        config = dataclasses.replace(config, max_header_list_bytes=2**17)
        command = ("nghttp", "--data", str(upload), "--trailer", "x-sum: 1", "--padding", "100", "--continuation")
        assert _serve(config, *command, "--timeout", "30", "{}/length") == (0, str(BIG_BYTES).encode(), "")

    def test_large_header_section(self, config):
        status, out, _ = _serve(config, "nghttp", "--continuation", "--verbose", "--timeout", "30", "{}/length")
        assert (status, b":status: 431" in out) == (0, True)

    def test_downloads_at_once_with_a_small_window(self, config):
        command = ("nghttp", "--window-bits", "12", "--no-dep", "--multiply", "4", "--timeout", "30", "{}/big")
        status, out, err = _serve(config, *command)
        assert (status, len(out), err) == (0, 4 * BIG_BYTES, "")

    def test_small_header_table(self, config):
        command = ("nghttp", "--header-table-size", "0", "--encoder-header-table-size", "100", "--multiply", "3")
        assert _serve(config, *command, "--timeout", "30", "{}/echo")[::2] == (0, "")


@_needs("h2load", "nghttp2-client")
@pytest.mark.parametrize("path", ["/length", "/echo"])
def test_h2load(config, upload, path):
    """Many streams on several connections."""
    body = upload.with_name("small")
    body.write_bytes(b"x" * 1000)
    status, out, _ = _serve(config, "h2load", "-n2000", "-c4", "-m32", "--data", str(body), "{}" + path)
    assert status == 0
    assert re.search(rb"2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout", out)
    assert re.search(rb"status codes: 2000 2xx", out)


def test_grpcio(config):
    """The client library under tritonclient: repeated heads, metadata that change its header table, and large messages."""

    def call(address):
        with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            echo = channel.unary_unary("/grpc/Echo")
            assert echo(bytes(BIG), timeout=60) == BIG
            for number in range(50):
                metadata = [("x-number", str(number)), ("x-bin", bytes([number]))]
                assert echo(b"%d" % number, timeout=60 + number, metadata=metadata) == b"%d" % number
            pending = [echo.future(b"x" * 1000, timeout=60) for _ in range(500)]
            assert {future.result() for future in pending} == {b"x" * 1000}

    async def client(address):
        await asyncio.to_thread(call, address)

    _with_server(config, client)
