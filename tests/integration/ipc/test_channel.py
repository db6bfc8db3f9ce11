"""The host's channel over a socket pair: with the stub's own channel at the other end, and with raw bytes."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from itertools import pairwise

import pytest

from pybackend.ipc.channel import MESSAGES_AT_ONCE, StubChannel
from pybackend.ipc.stub_messages import FreeInput, NeedOutput, Readiness
from pybackend_stub.channel import HostChannel, HostGone
from pybackend_wire.codec import available, encode_frame
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.framing import HEADER, MAX_METADATA_BYTES, MAX_TAIL_BYTES
from pybackend_wire.messages import HostMessage, SegmentRole, StubMessage

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
        self.channel.use_codec(codec)

    def on_messages(self, messages, tail):
        self.messages += messages
        self.tails.append(bytes(tail))
        self.changed.set()

    def on_end(self, error):
        self.ends.append(error)
        self.changed.set()

    async def until(self, condition):
        async with asyncio.timeout(30):
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
        end.channel.use_codec(codec)
        offsets = [end.channel.append_tail(data, len(data)) for data in (b"abc", b"", b"defgh")]
        for number in range(3):
            end.channel.post((HostMessage.DETACH, number))
        await asyncio.sleep(0)
        end.channel.post((HostMessage.NO_OUTPUT,))
        messages, tail = await asyncio.to_thread(stub.receive)
        assert messages == [[HostMessage.DETACH, 0], [HostMessage.DETACH, 1], [HostMessage.DETACH, 2]]
        assert [tail[offset : offset + size] for offset, size in zip(offsets, (3, 0, 5), strict=True)] == [
            b"abc",
            b"",
            b"defgh",
        ]
        assert await asyncio.to_thread(stub.receive) == ([[HostMessage.NO_OUTPUT]], b"")
        stub.send([NEED, (StubMessage.READINESS, False, "ä")], [b"xy", b"z"])
        await end.until(lambda: len(end.messages) == 2)
        assert (end.messages, end.tails) == ([NeedOutput(5), Readiness(False, "ä")], [b"xyz"])
        stub.close()
        assert await end.ended() is None
        assert not end.channel.is_open

    on_a_loop(scenario)


def test_tensors_in_a_tail_are_aligned():
    async def scenario(end):
        offsets = [end.channel.append_tail(bytes(size), size) for size in (1, 7, 16, 33, 2)]
        assert [offset % 16 for offset in offsets] == [0] * 5
        end.channel.post((HostMessage.NO_OUTPUT,))
        stub = HostChannel(end.theirs.detach())
        _, tail = await asyncio.to_thread(stub.receive)
        assert len(tail) == offsets[-1] + 2
        stub.close()

    on_a_loop(scenario)


@pytest.mark.parametrize("count", [1, 32, 33, 300])
def test_descriptors_arrive_with_their_messages_and_in_order(count):
    async def scenario(end):
        stub = HostChannel(end.theirs.detach())
        pipes = [os.pipe() for _ in range(count)]
        before = len(os.listdir("/proc/self/fd"))
        for number, (reading, _) in enumerate(pipes):
            end.channel.post_descriptor((HostMessage.ATTACH, number, 4096, SegmentRole.INPUT), reading)
        messages, _ = await asyncio.to_thread(stub.receive)
        assert [message[1] for message in messages] == list(range(count))
        assert len(stub.descriptors) == count
        assert len(os.listdir("/proc/self/fd")) == before + count  # what the host had duplicated is closed
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
            end.channel.append_tail(block, len(block))
            if number == 50:
                end.channel.post_descriptor((HostMessage.ATTACH, number, 1, SegmentRole.INPUT), reading)
            else:
                end.channel.post((HostMessage.DETACH, number))
            await asyncio.sleep(0)
        for number in range(100):
            ((_, found, *_),), tail = await asyncio.to_thread(stub.receive)
            assert (found, len(tail)) == (number, len(block))
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
        before = len(os.listdir("/proc/self/fd"))
        block = bytes(10_000_000)
        end.channel.append_tail(block, len(block))
        end.channel.post((HostMessage.NO_OUTPUT,))
        await asyncio.sleep(0)
        end.channel.post_descriptor((HostMessage.ATTACH, 1, 1, SegmentRole.INPUT), reading)
        await asyncio.sleep(0)
        end.theirs.close()
        assert await end.ended() is None
        end.channel.post((HostMessage.NO_OUTPUT,))  # to one that is gone: nothing happens
        await asyncio.sleep(0.01)
        end.channel.close()
        assert len(os.listdir("/proc/self/fd")) == before - 2
        os.close(reading)
        os.close(writing)

    on_a_loop(scenario)


def test_stub_notices_the_end_of_its_host():
    async def scenario(end):
        stub = HostChannel(end.theirs.detach())
        end.channel.post((HostMessage.NO_OUTPUT,))
        await asyncio.sleep(0)
        end.channel.close()
        assert await asyncio.to_thread(stub.receive) == ([[HostMessage.NO_OUTPUT]], b"")
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


def test_descriptors_from_a_stub_are_not_taken():
    async def scenario(end):
        reading, writing = os.pipe()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            socket.send_fds(end.theirs, [frame(NEED)], [reading, writing])
        await end.until(lambda: len(end.messages) == 20)
        assert len(os.listdir("/proc/self/fd")) == before
        os.close(reading)
        os.close(writing)

    on_a_loop(scenario)
