"""What ``http.server`` relies on in uvicorn, and ``request_reader`` in httptools: the reason for the upper bound of
uvicorn's version.

Everything here is about their classes, not about ours: a test that fails after an update says what has changed.
"""

import asyncio
import inspect
import socket
from contextlib import asynccontextmanager

import httptools
import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState


async def application(scope, receive, send):
    """Reads the body if asked to, and answers with the scope's path."""
    if scope["path"] == "/read":
        while (await receive())["more_body"]:
            pass
    body = scope["path"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Transport:
    """The methods of a transport that uvicorn's class calls."""

    def __init__(self):
        self.written, self.closed = b"", False

    def get_extra_info(self, name):
        return None

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


def make_config():
    config = Config(application, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    return config


class Spy(HttpToolsProtocol):
    """Calls what it overrides, or not, as the subclass that is served with does."""

    def __init__(self, *args):
        super().__init__(*args)
        self.completed = 0
        self.done = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_lost(self, exc):
        super().connection_lost(exc)
        self.lost.set()

    def on_response_complete(self):
        self.completed += 1
        self.done.set()


@asynccontextmanager
async def connect():
    """A connection to a spy: client's socket, the spy, and the state that all connections of a server share."""
    loop = asyncio.get_running_loop()
    state, config = ServerState(), make_config()
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    client.setblocking(False)
    accepted, _ = listener.accept()
    listener.close()
    _, spy = await loop.connect_accepted_socket(lambda: Spy(config, state, {}, loop), accepted)
    try:
        yield client, spy, state
    finally:
        spy.transport.abort()
        client.close()
        await spy.lost.wait()


async def reply(client, end):
    data = b""
    while not data.endswith(end):
        piece = await asyncio.get_running_loop().sock_recv(client, 65536)
        assert piece, data
        data += piece
    return data


def test_constructor():
    parameters = list(inspect.signature(HttpToolsProtocol).parameters)
    assert parameters == ["config", "server_state", "app_state", "_loop"]


def test_the_state_reaches_the_application(run):
    """``scope["state"]`` is a copy of the state that the object was given."""

    async def check():
        seen = []

        async def noting(scope, receive, send):
            seen.append(scope["state"])
            await application(scope, receive, send)

        config = Config(
            noting,
            interface="asgi3",
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        config.load()
        state = {"one": object()}
        protocol = HttpToolsProtocol(config, ServerState(), state)
        transport = Transport()
        protocol.connection_made(transport)
        protocol.data_received(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
        while not transport.written.endswith(b"/x"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert seen == [state]
        assert not transport.closed
        protocol.connection_lost(None)
        assert transport.closed

    run(check())


def test_body_that_nobody_reads_pauses_reading(run):
    """Until somebody resumes it: uvicorn does so in the method that a subclass overrides."""

    async def check():
        async with connect() as (client, spy, _state):
            loop = asyncio.get_running_loop()
            spy.data_received(b"POST /unread HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n" + bytes(70_000))
            await reply(client, b"/unread")
            await spy.done.wait()
            assert spy.flow.read_paused
            spy.flow.resume_reading()
            # What comes after the response is dropped.
            await loop.sock_sendall(client, bytes(930_000) + b"GET /next HTTP/1.1\r\n\r\n")
            await reply(client, b"/next")

    run(check())


def test_expectation_is_met_when_the_application_reads(run):
    async def check():
        async with connect() as (client, _spy, _state):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, b"POST /read HTTP/1.1\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
            assert await reply(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await loop.sock_sendall(client, b"{}")
            await reply(client, b"/read")

    run(check())


def test_shutdown(run):
    """Closes an idle connection; lets one that is answering end with its answer."""

    async def check():
        async with connect() as (client, spy, state):
            loop = asyncio.get_running_loop()
            spy.data_received(b"POST /read HTTP/1.1\r\ncontent-length: 2\r\n\r\n")
            assert state.tasks
            spy.shutdown()
            assert not spy.transport.is_closing()
            await loop.sock_sendall(client, b"{}")
            assert b"\r\nconnection: close\r\n" in await reply(client, b"/read")
            assert await loop.sock_recv(client, 1) == b""
        async with connect() as (_client, spy, _state):
            spy.shutdown()
            assert spy.transport.is_closing()

    run(check())


# --- httptools ------------------------------------------------------------------------------------------------------


class Calls:
    """The parser's callbacks, as a list."""

    def __init__(self, failing=()):
        self.calls = []
        self.failing = failing

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        if name in self.failing:
            return self._fail
        return lambda *args: self.calls.append((name, *args))

    def _fail(self, *args):
        raise httptools.HttpParserInvalidURLError("on purpose")

    @property
    def names(self):
        return [name for name, *_ in self.calls]


@pytest.fixture
def parse():
    def parse(*pieces, failing=()):
        calls = Calls(failing)
        parser = httptools.HttpRequestParser(calls)
        for piece in pieces:
            parser.feed_data(piece)
        return parser, calls

    return parse


HEAD = b"POST /p?q HTTP/1.1\r\nHost: x\r\nX-Mixed: Y\r\nContent-Length: 3\r\n\r\n"


def test_head_is_complete_with_its_last_byte(parse):
    _, calls = parse(HEAD[:-1])
    assert "on_headers_complete" not in calls.names
    parser, calls = parse(HEAD)
    assert calls.names[-1] == "on_headers_complete"
    assert ("on_url", b"/p?q") in calls.calls
    assert ("on_header", b"X-Mixed", b"Y") in calls.calls  # names as they were sent
    assert (parser.get_method(), parser.get_http_version()) == (b"POST", "1.1")
    assert parser.should_keep_alive()
    assert not parser.should_upgrade()


def test_body_is_complete_with_its_last_byte(parse):
    parser, calls = parse(HEAD, b"ab")
    assert calls.names[-1] == "on_body"
    parser.feed_data(b"c")
    assert calls.names[-2:] == ["on_body", "on_message_complete"]
    parser.feed_data(b"\r\n" + HEAD + b"abc")
    assert calls.names.count("on_message_begin") == calls.names.count("on_message_complete") == 2


def test_request_without_a_body_is_complete_with_its_head(parse):
    _, calls = parse(b"GET / HTTP/1.1\r\n\r\n")
    assert calls.names[-2:] == ["on_headers_complete", "on_message_complete"]


@pytest.mark.parametrize("framing", [b"Content-Length: 3", b"Transfer-Encoding: chunked"])
def test_upgrade_ends_the_message_with_its_head(framing):
    """The body that follows is left alone, and the parser says so with an exception: once, and with the place."""
    calls = Calls()
    parser = httptools.HttpRequestParser(calls)
    head = b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" + framing + b"\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as caught:
        parser.feed_data(head + b"abc")
    assert caught.value.args == (len(head),)
    assert parser.should_upgrade()
    assert parser.should_keep_alive()
    assert calls.names[-2:] == ["on_headers_complete", "on_message_complete"]
    assert "on_body" not in calls.names


def test_error_in_a_callback_is_the_context_of_the_parsers(parse):
    with pytest.raises(httptools.HttpParserCallbackError) as caught:
        parse(HEAD, failing=("on_headers_complete",))
    assert isinstance(caught.value.__context__, httptools.HttpParserInvalidURLError)
    assert issubclass(httptools.HttpParserCallbackError, httptools.HttpParserError)


@pytest.mark.parametrize("target", [b"example.org:443", b"/" + b"x" * 70_000])
def test_target_that_is_no_path(target):
    with pytest.raises(httptools.HttpParserInvalidURLError):
        httptools.parse_url(target)
