"""What the connections rely on in the event loop's transports, beyond what its documentation promises."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

MIB = 1 << 20


class Recorder(asyncio.Protocol):
    """Notes what happens to it."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.events = []
        self.data = bytearray()
        self.changed = asyncio.Event()

    def note(self, event):
        self.events.append(event)
        self.changed.set()

    async def until(self, condition):
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        assert type(data) is bytes
        self.data += data
        self.note("data")

    def eof_received(self):
        self.note("eof")

    def pause_writing(self):
        self.note(("pause", self.transport.get_write_buffer_size()))

    def resume_writing(self):
        self.note(("resume", self.transport.get_write_buffer_size()))

    def connection_lost(self, exc):
        self.note("lost")


@asynccontextmanager
async def connection(protocol=Recorder):
    """The server's side of a connection as a protocol, the client's as a socket that does not block."""
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    listener.close()
    client.setblocking(False)
    _, server = await loop.connect_accepted_socket(protocol, accepted)
    try:
        yield server, client
    finally:
        server.transport.abort()
        client.close()
        await server.until(lambda: "lost" in server.events)


async def read(client, count):
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < count:
        piece = await loop.sock_recv(client, MIB)
        assert piece
        data += piece
    return bytes(data)


@pytest.mark.parametrize("size", [8, 5000, 100_000])
def test_small_write_is_with_the_kernel_at_once(run, size):
    """Or later, but then the buffer says so, and the end is told."""

    async def check():
        async with connection() as (server, client):
            server.transport.set_write_buffer_limits(high=0, low=0)
            server.transport.writelines([b"head", memoryview(b"x" * size)])
            if server.transport.get_write_buffer_size():
                await server.until(lambda: server.events and server.events[-1] == ("resume", 0))
            assert await read(client, 4 + size) == b"head" + b"x" * size
            assert server.transport.get_write_buffer_size() == 0

    run(check())


@pytest.mark.parametrize("high", [0, 64 * 1024])
def test_resume_means_that_nothing_is_left(run, high):
    """A lease is given back on ``resume_writing``: with a low-water mark of 0 the kernel must have every byte by then."""

    async def check():
        async with connection() as (server, client):
            server.transport.set_write_buffer_limits(high=high, low=0)
            memory = bytearray(b"x" * 32 * MIB)
            server.transport.writelines([b"head", memoryview(memory)[: 16 * MIB], memoryview(memory)[16 * MIB :]])
            assert server.transport.get_write_buffer_size() > 0
            await server.until(lambda: server.events)
            assert server.events[0][0] == "pause"
            reading = asyncio.create_task(read(client, 4 + 32 * MIB))
            await server.until(lambda: len(server.events) > 1)
            assert server.events[1:] == [("resume", 0)]
            memory[:] = b"y" * len(memory)  # what comes after must not reach the client
            assert await reading == b"head" + b"x" * 32 * MIB

    run(check())


def test_writes_pause_and_resume_again_and_again(run):
    """Limits may change between replies, and each reply of some size has its own pause and resume."""

    async def check():
        async with connection() as (server, client):
            for _ in range(3):
                server.transport.set_write_buffer_limits(high=0, low=0)
                server.events.clear()
                server.transport.writelines([bytes(16 * MIB)])
                reading = asyncio.create_task(read(client, 16 * MIB))
                await server.until(lambda: len(server.events) >= 2)
                assert [event[0] for event in server.events] == ["pause", "resume"]
                await reading
                server.transport.set_write_buffer_limits(high=64 * 1024, low=0)
                server.transport.write(b"small")
                assert await read(client, 5) == b"small"

    run(check())


class Receiver(asyncio.BufferedProtocol):
    """Takes exactly the next bytes, then steps back."""

    def __init__(self, owner, size):
        self.owner = owner
        self.memory = bytearray(size)
        self.at = 0

    def get_buffer(self, sizehint):
        return memoryview(self.memory)[self.at :]

    def buffer_updated(self, nbytes):
        self.at += nbytes
        if self.at == len(self.memory):
            self.owner.transport.set_protocol(self.owner)
            self.owner.received(self)

    def eof_received(self):
        self.owner.eof_received()

    def pause_writing(self):
        self.owner.pause_writing()

    def resume_writing(self):
        self.owner.resume_writing()

    def connection_lost(self, exc):
        self.owner.connection_lost(exc)


SIZE = 300_000


class Swapping(Recorder):
    """Every message is four bytes of head, which swap the protocol, and a body that swaps it back."""

    def __init__(self):
        super().__init__()
        self.bodies = []
        self.head = b""

    def data_received(self, data):
        while data:
            missing = 4 - len(self.head)
            self.head += data[:missing]
            data = data[missing:]
            if len(self.head) < 4:
                return
            self.head = b""
            receiver = Receiver(self, SIZE)
            taken = data[:SIZE]
            receiver.memory[: len(taken)] = taken
            receiver.at = len(taken)
            data = data[SIZE:]
            if receiver.at < SIZE:
                self.transport.set_protocol(receiver)
                return
            self.received(receiver)

    def received(self, receiver):
        self.bodies.append(bytes(receiver.memory))
        self.note("body")


def test_protocol_is_swapped_within_its_callbacks(run):
    """From ``data_received`` to a buffered protocol, and from its ``buffer_updated`` back: no byte is lost or moved."""

    async def check():
        async with connection(Swapping) as (server, client):
            bodies = [bytes([number]) * SIZE for number in range(20)]
            message = b"".join(b"head" + body for body in bodies)
            loop = asyncio.get_running_loop()
            sending = asyncio.create_task(loop.sock_sendall(client, message))
            await server.until(lambda: len(server.bodies) == 20)
            await sending
            assert server.bodies == bodies
            # A single message that comes byte by byte, and the plain protocol is back in between.
            for byte in b"head":
                await loop.sock_sendall(client, bytes([byte]))
            await loop.sock_sendall(client, bodies[7])
            await server.until(lambda: len(server.bodies) == 21)
            assert server.bodies[20] == bodies[7]

    run(check())


@pytest.mark.parametrize("how", ["close", "reset"])
def test_end_reaches_the_protocol_that_stands_in(run, how):
    async def check():
        async with connection(Swapping) as (server, client):
            await asyncio.get_running_loop().sock_sendall(client, b"head" + bytes(1000))
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
            await server.until(lambda: "lost" in server.events)
            assert server.events in (["eof", "lost"], ["lost"])

    run(check())


def test_writing_goes_on_while_another_protocol_receives(run):
    """Flow control of what is written reaches whoever is the protocol then."""

    async def check():
        async with connection(Swapping) as (server, client):
            loop = asyncio.get_running_loop()
            server.transport.set_write_buffer_limits(high=0, low=0)
            await loop.sock_sendall(client, b"head")
            await asyncio.sleep(0)
            server.transport.writelines([bytes(16 * MIB)])
            reading = asyncio.create_task(read(client, 16 * MIB))
            await loop.sock_sendall(client, bytes(SIZE))
            await server.until(lambda: len(server.events) >= 3)
            await reading
            assert [event if event == "body" else event[0] for event in server.events].count("resume") == 1

    run(check())


def test_reading_pauses(run):
    """What is sent meanwhile stays with the kernel, and comes when reading goes on."""

    async def check():
        async with connection() as (server, client):
            loop = asyncio.get_running_loop()
            server.transport.pause_reading()
            await loop.sock_sendall(client, b"later")
            for _ in range(5):
                await asyncio.sleep(0)
            assert server.data == b""
            server.transport.resume_reading()
            await server.until(lambda: server.data)
            assert server.data == b"later"

    run(check())


def test_abort_ends_a_connection_whose_client_does_not_read(run):
    async def check():
        async with connection() as (server, _client):
            server.transport.write(bytes(16 * MIB))
            server.transport.abort()
            await server.until(lambda: "lost" in server.events)

    run(check())
