"""Connections on which nothing moves any more: which of them end, and after how long."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from pybackend.frontend.flow import IDLE_SECONDS, LOWEST_RATE_BYTES_PER_S, STALLED_SECONDS, ClientMemory
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listening import bind

HUGE = 64 << 20


async def application(scope, receive, send):
    """``/wait`` waits for the client's end, ``/huge`` says more than sockets hold."""
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    if scope["path"] == "/wait":
        await receive()
        return
    body = bytes(HUGE if scope["path"] == "/huge" else 2)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving():
    """A server, and a function that lets its clock run ahead."""
    loop = asyncio.get_running_loop()
    server = HttpServer(application, ClientMemory(1 << 30))
    sock = bind("127.0.0.1", 0, "HTTP")
    await server.start(sock)

    try:
        yield sock.getsockname(), server.tick
    finally:
        await server.stop(loop.time())


async def settle(address):
    """Returns once the server has done what there was to do: a newcomer's request is answered after it."""
    loop = asyncio.get_running_loop()
    with socket.create_connection(address) as client:
        client.setblocking(False)
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await loop.sock_recv(client, 1000)


async def is_open(address, client):
    await settle(address)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


@asynccontextmanager
async def client_of(address, data):
    """A client that has sent this; the server has read it."""
    with socket.create_connection(address) as client:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(client, data)
        await settle(address)
        yield client


STALLED = {
    "half a head": b"GET / HTTP/1.1\r\nHo",
    "half an empty line": b"GET / HTTP/1.1\r\n\r",
    "half a body": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345",
    "half a chunk": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12",
}


@pytest.mark.parametrize("data", STALLED.values(), ids=STALLED)
def test_unfinished_request(run, data):
    async def check():
        async with serving() as (address, advance), client_of(address, data) as client:
            advance(STALLED_SECONDS - 1)
            assert await is_open(address, client)
            advance(2)  # the bytes that it did send count for a part of a second
            assert not await is_open(address, client)

    run(check())


def test_reply_that_nobody_reads(run):
    async def check():
        async with (
            serving() as (address, advance),
            client_of(address, b"GET /huge HTTP/1.1\r\nhost: x\r\n\r\n") as client,
        ):
            advance(STALLED_SECONDS)
            loop, received = asyncio.get_running_loop(), 0
            with pytest.raises((ConnectionResetError, EOFError)):  # noqa: PT012  it may say more before it ends
                while data := await loop.sock_recv(client, 1 << 20):
                    received += len(data)
                raise EOFError
            assert received < HUGE

    run(check())


def test_idle_connection(run):
    async def check():
        async with serving() as (address, advance), client_of(address, b"") as client:
            advance(IDLE_SECONDS - 1)
            assert await is_open(address, client)
            advance(1)
            assert not await is_open(address, client)

    run(check())


def test_request_that_takes_its_time(run):
    """A model may compute for as long as it likes; only clients are hurried."""

    async def check():
        async with (
            serving() as (address, advance),
            client_of(address, b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n") as client,
        ):
            advance(10 * IDLE_SECONDS)
            assert await is_open(address, client)

    run(check())


@pytest.mark.parametrize("piece_bytes", [1 << 20, 256 << 10], ids=["quickly", "as much as sockets hold"])
def test_reply_that_is_read_slowly(run, piece_bytes):
    """What counts is how much is left to be sent, even while all that the client reads comes from the kernel's buffers."""
    pause_s = STALLED_SECONDS // 3  # the kernel's windows open in steps, so that progress may show a turn later

    async def check():
        async with (
            serving() as (address, advance),
            client_of(address, b"GET /huge HTTP/1.1\r\nhost: x\r\n\r\n") as client,
        ):
            loop, left = asyncio.get_running_loop(), 40 * piece_bytes
            while left > 0:
                wanted = min(left, piece_bytes)
                while wanted:
                    data = await loop.sock_recv(client, wanted)
                    assert data
                    wanted -= len(data)
                    left -= len(data)
                await settle(address)
                advance(pause_s)
            assert await is_open(address, client)

    run(check())


@pytest.mark.parametrize(
    "head", [b"GET /", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"], ids=["head", "body"]
)
def test_bytes_that_trickle(run, head):
    """A byte now and then does not keep a connection; the lowest rate does, however it is kept."""
    pause_s = STALLED_SECONDS // 3

    async def check(sent_bytes, *, expected):
        async with serving() as (address, advance), client_of(address, head) as client:
            loop = asyncio.get_running_loop()
            for _ in range(8):
                advance(pause_s)
                if not await is_open(address, client):
                    break
                await loop.sock_sendall(client, b"x" * sent_bytes)
                await settle(address)
            assert await is_open(address, client) == expected

    run(check(1, expected=False))
    if b"length" in head:
        run(check(pause_s * LOWEST_RATE_BYTES_PER_S, expected=True))
