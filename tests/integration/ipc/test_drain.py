"""The last look into the socket of a process that is dead, while a child of it goes on writing."""

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise

from pybackend.ipc.channel import MESSAGES_AT_ONCE, StubChannel
from pybackend_wire.framing import HEADER
from pybackend_wire.host_messages import Attach, NoOutput
from pybackend_wire.messages import SegmentRole, StubMessage

FLOOD = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
print(flush=True)
while True:
    end.sendall(bytes.fromhex(sys.argv[2]) * 1000)
"""


def test_what_comes_later_is_not_read():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    metadata = json.dumps([[StubMessage.DETACHED, 1]]).encode()
    frame = HEADER.pack(len(metadata), 0) + metadata
    read, ends = [], []

    async def main():
        channel = StubChannel(
            asyncio.get_running_loop(), ours, lambda messages, _tail: read.extend(messages), ends.append
        )
        theirs.sendall(frame * 100)
        arguments = [sys.executable, "-c", FLOOD, str(theirs.fileno()), frame.hex()]
        with subprocess.Popen(arguments, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as child:  # noqa: ASYNC220
            child.stdout.readline()
            drained = asyncio.Event()
            channel.drain(drained.set)
            async with asyncio.timeout(60):
                await drained.wait()
            child.kill()

    with theirs:
        asyncio.run(main())
    assert len(read) >= 100
    assert ends == [None]


def test_others_have_their_turns_while_much_is_drained():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    metadata = json.dumps([[StubMessage.DETACHED, 1]]).encode()
    frame = HEADER.pack(len(metadata), 0) + metadata
    read = []

    async def main():
        channel = StubChannel(
            asyncio.get_running_loop(), ours, lambda messages, _tail: read.extend(messages), lambda _error: None
        )
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += theirs.send(frame * 100)
        drained = asyncio.Event()
        channel.drain(drained.set)
        counts = [0]
        while not drained.is_set():
            counts.append(len(read))
            await asyncio.sleep(0)
        return sent // len(frame), max(after - before for before, after in pairwise(counts))

    with theirs:
        sent, most = asyncio.run(main())
    assert len(read) == sent > 4 * MESSAGES_AT_ONCE
    assert most <= MESSAGES_AT_ONCE


def test_a_channel_that_is_closed_keeps_nothing():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def main():
        channel = StubChannel(asyncio.get_running_loop(), ours, lambda _messages, _tail: None, lambda _error: None)
        channel.close()
        channel.post_attach(Attach(1, 1, SegmentRole.INPUT), theirs.fileno())
        channel.post(NoOutput())
        assert not channel._writer._descriptors
        assert not channel._messages

    with theirs:
        asyncio.run(main())
