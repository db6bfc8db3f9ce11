"""The last look into the socket of a process that is dead, while a child of it goes on writing."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time

from pybackend.ipc.channel import StubChannel
from pybackend_wire.framing import HEADER
from pybackend_wire.messages import StubMessage

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
            begin_s = time.monotonic()
            channel.drain()
            took_s = time.monotonic() - begin_s
            child.kill()
        return took_s

    with theirs:
        assert asyncio.run(main()) < 5
    assert len(read) >= 100
    assert ends == [None]


def test_a_channel_that_is_closed_keeps_nothing():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def main():
        channel = StubChannel(asyncio.get_running_loop(), ours, lambda _messages, _tail: None, lambda _error: None)
        channel.close()
        channel.post_descriptor((1,), theirs.fileno())
        channel.post((1,))
        assert not channel._descriptors
        assert not channel._messages

    with theirs:
        asyncio.run(main())
