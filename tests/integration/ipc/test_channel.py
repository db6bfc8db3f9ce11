"""The host's channel over a socket pair: with the stub's own channel at the other end, and with raw bytes."""

import asyncio
import os
import resource
import select
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from itertools import pairwise

import pytest

from pybackend.ipc.channel import MESSAGES_AT_ONCE, StubChannel
from pybackend.ipc.stub_messages import FreeInput, NeedOutput, Readiness
from pybackend.ipc.unwanted_descriptors import refuses_descriptors
from pybackend.process.stub_process import connected_ends
from pybackend_stub.channel import HostChannel, HostGone
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.framing import HEADER, MAX_METADATA_BYTES, MAX_TAIL_BYTES, available, encode_frame
from pybackend_wire.host_messages import Attach, Detach, NoOutput
from pybackend_wire.messages import SegmentRole, StubMessage
from tests.support.descriptors import open_descriptors

CODECS = {codec.name: codec for codec in available()}


class HostEnd:
    """The host's channel, and what it has told its owner."""

    def __init__(self, codec="json"):
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.messages, self.tails, self.ends = [], [], []
        self.changed = asyncio.Event()
        self.channel = StubChannel(self.loop, ours, self.on_messages, self.on_end)
        self.channel.codec = codec

    def on_messages(self, messages, tail):
        self.messages += messages
        self.tails.append(bytes(tail))
        self.changed.set()

    def on_end(self, error):
        self.ends.append(error)
        self.changed.set()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def ended(self):
        await self.until(lambda: self.ends)
        return self.ends[0]

    def close(self):
        self.channel.close()
        self.theirs.close()


def on_a_loop(scenario):
    """Run a scenario, a coroutine function of a :class:`HostEnd`, on an event loop of its own."""

    async def main():
        end = HostEnd()
        try:
            await scenario(end)
            assert len(end.ends) <= 1, "the end was told twice"
        finally:
            end.close()

    asyncio.run(main())


def frame(*messages, tail=(), codec="json"):
    return encode_frame(CODECS[codec], messages, tail)


def same(descriptor, other):
    return os.path.sameopenfile(descriptor, other)


NEED = (StubMessage.NEED_OUTPUT, 5)


# --- With the stub's channel ---


@pytest.mark.parametrize("codec", CODECS)
def test_messages_of_one_turn_are_one_frame(codec):
    async def scenario(end):
        stub = HostChannel(end.theirs.detach())
        stub.use_codec(codec)
        end.channel.codec = codec
        offsets = [end.channel.append_tail(data) for data in (b"abc", b"", b"defgh")]
        for number in range(3):
            end.channel.post(Detach(number))
        await asyncio.sleep(0)
        end.channel.post(NoOutput())
        messages, tail = await asyncio.to_thread(stub.receive)
        assert messages == [Detach(0), Detach(1), Detach(2)]
        assert [tail[offset : offset + size] for offset, size in zip(offsets, (3, 0, 5), strict=True)] == [
            b"abc",
            b"",
            b"defgh",
        ]
        assert await asyncio.to_thread(stub.receive) == ([NoOutput()], b"")
        stub.send([NEED, (StubMessage.READINESS, False, "ä")], [b"xy", b"z"])
        await end.until(lambda: len(end.messages) == 2)
        assert (end.messages, end.tails) == ([NeedOutput(5), Readiness(False, "ä")], [b"xyz"])
        stub.close()
        assert await end.ended() is None
        assert not end.channel.is_open

    on_a_loop(scenario)


def test_tensors_in_a_tail_are_aligned():
    async def scenario(end):
        offsets = [end.channel.append_tail(bytes(size)) for size in (1, 7, 16, 33, 2)]
        assert [offset % 16 for offset in offsets] == [0] * 5
        end.channel.post(NoOutput())
        stub = HostChannel(end.theirs.detach())
        _, tail = await asyncio.to_thread(stub.receive)
        assert len(tail) == offsets[-1] + 2
        stub.close()

    on_a_loop(scenario)


def descriptors_of(pipes: list[tuple[int, int]]) -> int:
    """How many descriptors of this process lead to these pipes; other threads may open others meanwhile."""
    wanted = {os.fstat(reading).st_ino for reading, _ in pipes}
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.stat(f"/proc/self/fd/{name}").st_ino in wanted
    return found


@pytest.mark.parametrize("count", [1, 32, 33, 300])
def test_descriptors_arrive_with_their_messages_and_in_order(count):
    async def scenario(end):
        stub = HostChannel(end.theirs.detach())
        pipes = [os.pipe() for _ in range(count)]
        before = descriptors_of(pipes)
        for number, (reading, _) in enumerate(pipes):
            end.channel.post_attach(Attach(number, 4096, SegmentRole.INPUT), reading)
        messages, _ = await asyncio.to_thread(stub.receive)
        assert [message.segment for message in messages] == list(range(count))
        assert len(stub.descriptors) == count
        assert descriptors_of(pipes) == before + count  # what the host had duplicated is closed
        for descriptor, (reading, _) in zip(stub.descriptors, pipes, strict=True):
            assert same(descriptor, reading)
        for descriptor in (*stub.descriptors, *(one for pipe in pipes for one in pipe)):
            os.close(descriptor)
        stub.close()

    on_a_loop(scenario)


def test_a_stub_that_does_not_read_keeps_nobody_waiting():
    """What its socket does not take is kept, and arrives later, in order and with its descriptors."""

    async def scenario(end):
        stub = HostChannel(end.theirs.detach())
        reading, writing = os.pipe()
        block = bytes(100_000)
        for number in range(100):
            end.channel.append_tail(block)
            if number == 50:
                end.channel.post_attach(Attach(number, 1, SegmentRole.INPUT), reading)
            else:
                end.channel.post(Detach(number))
            await asyncio.sleep(0)
        for number in range(100):
            (message,), tail = await asyncio.to_thread(stub.receive)
            assert (message.segment, len(tail)) == (number, len(block))
        (descriptor,) = stub.descriptors
        assert same(descriptor, reading)
        for one in (descriptor, reading, writing):
            os.close(one)
        stub.close()
        await end.ended()

    on_a_loop(scenario)


def test_end_while_much_is_kept():
    async def scenario(end):
        reading, writing = os.pipe()
        before = open_descriptors()
        block = bytes(10_000_000)
        end.channel.append_tail(block)
        end.channel.post(NoOutput())
        await asyncio.sleep(0)
        end.channel.post_attach(Attach(1, 1, SegmentRole.INPUT), reading)
        await asyncio.sleep(0)
        end.theirs.close()
        assert await end.ended() is None
        end.channel.post(NoOutput())  # to one that is gone: nothing happens
        await asyncio.sleep(0.01)
        end.channel.close()
        now = open_descriptors()
        assert len(before - now) >= 2  # both ends; objects of other tests may end meanwhile
        assert not now - before
        os.close(reading)
        os.close(writing)

    on_a_loop(scenario)


def test_stub_notices_the_end_of_its_host():
    async def scenario(end):
        stub = HostChannel(end.theirs.detach())
        end.channel.post(NoOutput())
        await asyncio.sleep(0)
        end.channel.close()
        assert await asyncio.to_thread(stub.receive) == ([NoOutput()], b"")
        for _ in range(2):
            with pytest.raises(HostGone):
                await asyncio.to_thread(stub.receive)
        with pytest.raises(HostGone):
            stub.send([NEED])
        stub.close()

    on_a_loop(scenario)


# --- With raw bytes ---


def test_frames_that_arrive_byte_by_byte():
    async def scenario(end):
        data = frame(NEED, tail=[b"tail"]) + frame((StubMessage.FREE_INPUT, [[1, 64], [2, 0]]))
        for index in range(len(data)):
            end.theirs.sendall(data[index : index + 1])
            await asyncio.sleep(0)
        await end.until(lambda: len(end.messages) == 2)
        assert end.messages == [NeedOutput(5), FreeInput([(1, 64), (2, 0)])]
        assert end.tails == [b"tail", b""]

    on_a_loop(scenario)


@pytest.mark.parametrize("kept", [1, 7, 8, 9, -1])
def test_end_in_the_middle_of_a_frame(kept):
    async def scenario(end):
        data = frame(NEED, tail=[b"tail"])
        end.theirs.sendall(frame((StubMessage.DETACHED, 3)) + data[:kept])
        end.theirs.close()
        assert await end.ended() is None
        assert len(end.messages) == 1  # the half frame counts for nothing

    on_a_loop(scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 8,
        HEADER.pack(MAX_METADATA_BYTES + 1, 0),
        HEADER.pack(0, MAX_TAIL_BYTES + 1),
        HEADER.pack(0, 0),
        HEADER.pack(4, 0) + b"\xff\xfe\xfd\xfc",
        HEADER.pack(2, 0) + b"{}",
        frame((99,)),
        frame((StubMessage.NEED_OUTPUT, "five")),
        frame((StubMessage.NEED_OUTPUT,)),
        frame([NEED]),
        frame(NEED, codec="msgpack"),
        HEADER.pack(100_000, 0) + b"[" * 100_000,
    ],
)
def test_broken_contract(data):
    async def scenario(end):
        end.theirs.sendall(frame((StubMessage.DETACHED, 3)) + data + frame(NEED))
        assert isinstance(await end.ended(), RemoteProtocolError)
        assert not end.channel.is_open
        assert len(end.messages) <= 1  # nothing that came after it is looked at
        assert end.theirs.recv(1) == b""

    on_a_loop(scenario)


def test_owner_that_finds_a_lie():
    async def scenario(end):
        def refuse(messages, tail):
            end.messages += messages
            raise RemoteProtocolError("a lie")

        end.channel._on_messages = refuse
        end.theirs.sendall(frame(NEED) + frame(NEED))
        assert str(await end.ended()) == "a lie"
        assert len(end.messages) == 1

    on_a_loop(scenario)


def test_a_flood_leaves_the_loop_to_others():
    async def scenario(end):
        stop = threading.Event()
        talk = frame((StubMessage.READINESS, False, "on and on")) * 1000

        def flood():
            while not stop.is_set():
                try:
                    end.theirs.sendall(talk)
                except OSError:
                    return

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            await end.until(lambda: end.messages)
            counts = [len(end.messages)]
            for _ in range(200):
                await asyncio.sleep(0)
                counts.append(len(end.messages))
            assert counts[-1] > counts[0]
            most = max(after - before for before, after in pairwise(counts))
            assert most <= 2 * (MESSAGES_AT_ONCE + 1000)  # a turn ends with the frame in which that many are handled
            assert end.ends == []
        finally:
            stop.set()
            end.channel.close()
            thread.join()

    on_a_loop(scenario)


def test_what_a_dead_stub_has_left_is_read():
    async def scenario(end):
        end.theirs.sendall(frame(NEED) * 500)
        drained = []
        end.channel.drain(lambda: drained.append(len(end.messages)))
        await end.ended()
        assert drained == [500]
        assert end.ends == [None]
        end.channel.drain(lambda: drained.append(0))
        assert drained == [500, 0]

    on_a_loop(scenario)


def test_descriptors_from_a_stub_are_its_end():
    async def scenario(end):
        reading, writing = os.pipe()
        for _ in range(20):
            socket.send_fds(end.theirs, [frame(NEED)], [reading, writing])
        assert "file descriptors" in str(await end.ended())
        os.close(writing)
        # The other end is closed, whoever held a copy, and whoever it was that closed them.
        assert await asyncio.wait_for(asyncio.to_thread(os.read, reading, 1), 60) == b""
        os.close(reading)
        assert not end.messages

    on_a_loop(scenario)


def test_a_message_that_the_host_cannot_handle_ends_the_channel_and_not_the_loop(caplog):
    """Else whoever waits for what it said would wait for ever."""

    async def scenario(end):
        def fail(_messages, _tail):
            raise OSError("no descriptor left")

        end.channel._on_messages = fail
        end.theirs.send(frame(NEED))
        error = await end.ended()
        assert "could not handle a message" in str(error)
        assert not end.channel.is_open

    on_a_loop(scenario)
    assert "no descriptor left" in caplog.text


# --- Descriptors that nobody wants ---


@contextmanager
def lingering():
    """A connection whose last descriptor cannot be closed without waiting, and what ends that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
        sender.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                sender.send(bytes(1 << 16))
        try:
            yield sender, receiver
        finally:
            sender.close()
            receiver.close()


@pytest.mark.parametrize("read", [True, False], ids=["read", "left unread"])
def test_a_descriptor_is_never_closed_on_the_event_loop(read):
    """The socket lets them in, as on kernels that cannot keep them out."""
    ended = threading.Event()
    in_time = []

    def release(receiver):
        in_time.append(ended.wait(60))
        receiver.close()  # which ends the waiting of whoever waits

    async def scenario(end):
        assert not refuses_descriptors(end.theirs)
        with lingering() as (sender, receiver):
            releasing = threading.Thread(target=release, args=(receiver,))
            releasing.start()
            if not read:
                end.loop.remove_reader(end.channel._descriptor)
            socket.send_fds(end.theirs, [frame(NEED)], [sender.fileno()])
            sender.close()
            if read:
                assert "file descriptors" in str(await end.ended())
                assert not end.messages
            end.channel.close()
            with suppress(ConnectionResetError):  # there was something left to read
                assert end.theirs.recv(1) == b""
            ended.set()
            await asyncio.to_thread(releasing.join)

    on_a_loop(scenario)
    assert in_time == [True]


def test_a_kernel_that_can_keeps_descriptors_out():
    with connected_ends() as (ours, theirs):
        try:
            other = socket.socket(fileno=os.dup(theirs.socket))
            if not refuses_descriptors(ours.socket):
                pytest.skip("this kernel lets them in")
            with other, pytest.raises(PermissionError):
                socket.send_fds(other, [b"x"], [0])
            socket.send_fds(ours.socket, [b"x"], [0])  # the other way they must go
        finally:
            ours.socket.close()
            os.close(ours.nudges)
            os.close(ours.output)


@contextmanager
def limited_descriptors():
    """Few descriptors may be open, and be under way; also where the user is root, for whom the latter does not count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    user = os.geteuid()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    if user == 0:
        os.seteuid(54_321)
    try:
        yield
    finally:
        os.seteuid(user)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_frame_waits_while_others_of_this_user_have_too_many_descriptors_under_way():
    """The kernel counts them by user; a model that is no user of its own can send them to itself."""

    async def scenario(end):
        stub = HostChannel(end.theirs.detach())
        sender, holder = socket.socketpair()
        sender.setblocking(False)
        try:
            with sender, holder, limited_descriptors():
                with suppress(OSError):
                    while True:
                        socket.send_fds(sender, [b"x"], [0] * 253)
                end.channel.post_attach(Attach(1, 4096, SegmentRole.INPUT), 0)
                end.channel.flush()
                await asyncio.sleep(0)
                assert end.channel.has_unread
                assert not select.select([stub._socket], [], [], 0)[0]
            messages, _ = await asyncio.wait_for(asyncio.to_thread(stub.receive), 60)
            assert messages == [Attach(1, 4096, SegmentRole.INPUT)]
            assert same(stub.descriptors[0], 0)
        finally:
            stub.close()

    on_a_loop(scenario)
