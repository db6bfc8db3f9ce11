"""The output memory of one stub, over a socket pair: when the host asks for segments, and what it still reads of them."""

import asyncio
import mmap
import os
import socket

import pytest

from pybackend.instance.output_memory import OutputMemory
from pybackend.ipc.arena import IDLE_NS
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.stub_messages import TensorPlace
from pybackend_stub.channel import HostChannel
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import Attach, FreeOutput, NoOutput
from tests.support.descriptors import open_descriptors

MIB = 1024 * 1024


class Ends:
    """Output memory, and the stub's end of the socket."""

    def __init__(self, limit_bytes=64 * MIB):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._channel = StubChannel(loop, ours, lambda messages, tail: None, lambda error: None)
        self.memory = OutputMemory(self._channel, limit_bytes)
        self._stub = HostChannel(theirs.detach())

    async def heard(self):
        """What the host has said since the last time, in one frame."""
        self._channel.flush()
        messages, _ = await asyncio.to_thread(self._stub.receive)
        while self._stub.descriptors:
            os.close(self._stub.descriptors.popleft())
        return messages

    async def grow(self):
        """A new segment's number."""
        self.memory.grow(MIB)
        (attach,) = await self.heard()
        assert isinstance(attach, Attach)
        await asyncio.sleep(0)
        return attach.segment

    async def asked_for(self, now_ns):
        """The segments that the host wants back at that time."""
        self.memory.trim(now_ns)
        self._channel.post(NoOutput())  # so that there is something to hear
        return [message.segment for message in (await self.heard())[:-1]]

    def close(self):
        self.memory.close()
        self._channel.close()
        self._stub.close()


def play(scenario):
    async def main():
        ends = Ends()
        try:
            async with asyncio.timeout(60):
                await scenario(ends)
        finally:
            ends.close()

    asyncio.run(main())


def place(segment, offset=0):
    return TensorPlace("OUT", "UINT8", [64], segment, offset, 64)


def test_an_unused_segment_is_asked_for_until_it_comes():
    """A stub keeps what it is just writing to."""

    async def scenario(ends):
        number = await ends.grow()
        assert await ends.asked_for(IDLE_NS) == []
        assert await ends.asked_for(2 * IDLE_NS - 1) == []
        assert await ends.asked_for(2 * IDLE_NS) == [number]
        assert await ends.asked_for(2 * IDLE_NS + 1) == []
        assert await ends.asked_for(3 * IDLE_NS) == [number]
        ends.memory.detached(number)
        assert await ends.asked_for(5 * IDLE_NS) == []

    play(scenario)


def test_a_segment_that_is_read_or_was_used_stays():
    async def scenario(ends):
        kept, other = await ends.grow(), await ends.grow()
        assert await ends.asked_for(1) == []
        ends.memory.read_tensor(place(kept), b"")
        assert await ends.asked_for(1 + IDLE_NS) == [other]
        assert await ends.asked_for(9 * IDLE_NS) == [other]
        ends.memory.let_go([(kept, 0)])
        assert isinstance((await ends.heard())[0], FreeOutput)
        for _ in range(2):  # used and free again between two looks
            ends.memory.read_tensor(place(kept, 64), b"")
            ends.memory.let_go([(kept, 64)])
            await ends.heard()
            assert kept not in await ends.asked_for(10 * IDLE_NS)
        assert kept in await ends.asked_for(11 * IDLE_NS)
        ends.memory.read_tensor(place(kept), b"")
        with pytest.raises(RemoteProtocolError, match="still being read"):
            ends.memory.detached(kept)

    play(scenario)


@pytest.mark.parametrize("limit_bytes", [1 << 40, 300 * MIB + 12345], ids=["a terabyte", "an odd limit"])
def test_however_often_a_byte_is_asked_for_there_are_few_segments_of_one_descriptor_each(limit_bytes):
    """Nothing of it is written to, so that it takes no memory."""

    async def main():
        ends = Ends(limit_bytes)
        before, sizes = open_descriptors(), []
        try:
            while True:
                ends.memory.grow(1)
                (message,) = await ends.heard()
                if isinstance(message, NoOutput):
                    break
                sizes.append(message.size_bytes)
                assert len(sizes) <= 128
                await asyncio.sleep(0)
            assert len(open_descriptors() - before) == len(sizes)
            assert limit_bytes - mmap.PAGESIZE < sum(sizes) <= limit_bytes
        finally:
            ends.close()
        assert not open_descriptors() - before

    asyncio.run(main())
