"""The channel between the engine and a front end: frames, parts, descriptors, peers that do not read, and garbage."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from pybackend.frontend.remote import channel as channel_module
from pybackend.frontend.remote.channel import MOST_MESSAGES, Channel, decoders, socket_pair


class Word(msgspec.Struct, array_like=True, tag=1):
    text: str


class Number(msgspec.Struct, array_like=True, tag=2):
    value: int


DECODE = decoders(Word | Number)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class End:
    """One end: what it has heard, and how it ended."""

    def __init__(self, sock: socket.socket, most_at_once: int = MOST_MESSAGES, **options: Any) -> None:
        self.most_at_once = most_at_once
        self.frames: list[list[Any]] = []
        self.descriptors: list[int] = []
        self.ended: list[str | None] = []
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.channel = Channel(loop, sock, DECODE, self._on_messages, self._on_end, **options)

    def _on_messages(self, messages: list[Any], descriptors: Any) -> list[Any]:
        now, later = messages[: self.most_at_once], messages[self.most_at_once :]
        self.frames.append(now)
        if not later:
            self.descriptors.extend(descriptors)
        self._changed.set()
        return later

    def _on_end(self, error: Exception | None) -> None:
        self.ended.append(None if error is None else str(error))
        self._changed.set()

    async def hears(self, count: int) -> list[Any]:
        """All messages, once there are so many."""
        while sum(map(len, self.frames)) < count:
            await self._next()
        return [message for frame in self.frames for message in frame]

    async def end(self) -> str | None:
        while not self.ended:
            await self._next()
        return self.ended[0]

    async def _next(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(60):
            await self._changed.wait()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket_pair()
    yield pair
    for each in pair:
        each.close()


Sockets = tuple[socket.socket, socket.socket]


@in_loop
async def test_messages_of_one_turn_arrive_in_one_frame(sockets: Sockets) -> None:
    ours, theirs = End(sockets[0]), End(sockets[1])
    theirs.channel.post(Word("a"))
    theirs.channel.post(Number(7))
    assert await ours.hears(2) == [Word("a"), Number(7)]
    assert len(ours.frames) == 1
    ours.channel.post(Number(1))
    assert await theirs.hears(1) == [Number(1)]
    theirs.channel.close()
    assert await ours.end() is None


@in_loop
async def test_a_message_that_cannot_be_encoded_holds_up_no_other(
    sockets: Sockets, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = End(sockets[0]), End(sockets[1], takes_descriptors=True)
    kept, other = os.pipe()
    for message in (Word("a"), (2, 2**64)):
        ours.channel.post(message)
    ours.channel.post_with(Word("b"), kept)
    assert await theirs.hears(2) == [Word("a"), Word("b")]
    assert len(theirs.descriptors) == 1
    assert "cannot be sent" in caplog.text
    ours.channel.post(Word("c"))
    assert (await theirs.hears(3))[-1] == Word("c")
    for descriptor in (other, *theirs.descriptors):
        os.close(descriptor)


@in_loop
async def test_a_message_that_fits_into_no_datagram_arrives_apart(sockets: Sockets) -> None:
    """Of the others, as many as fit into one come together."""
    ours, theirs = End(sockets[0]), End(sockets[1])
    sent = [Word(str(number) * size) for number, size in enumerate((1, 70_000, 70_000, 60_000, 5_000, 5_000, 1))]
    for message in sent:
        ours.channel.post(message)
    assert await theirs.hears(len(sent)) == sent
    assert [len(frame) for frame in theirs.frames] == [1, 1, 1, 2, 2]


@in_loop
async def test_messages_that_have_to_wait_come_in_later_turns_and_in_order(sockets: Sockets) -> None:
    """Whatever is sent behind them waits, too, and the loop goes on in between."""
    ours, theirs = End(sockets[0], most_at_once=2), End(sockets[1])
    sent = [Number(number) for number in range(8)]
    for message in sent[:5]:
        theirs.channel.post(message)
    theirs.channel.flush()
    for message in sent[5:]:
        theirs.channel.post(message)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not ours.frames or len(ours.frames) < 5:
            loop.call_soon(turn)

    loop = asyncio.get_running_loop()
    loop.call_soon(turn)
    assert await ours.hears(8) == sent
    assert [len(frame) for frame in ours.frames] == [2, 2, 1, 2, 1]
    assert turns >= 4


@in_loop
async def test_parts_of_frames_are_few_in_a_turn_however_much_waits_behind_them(sockets: Sockets) -> None:
    """The peer would have more of each turn than of the one before if what can be read led to further parts."""
    theirs = End(sockets[1])
    for first in (0, 50):
        for number in range(first, first + 50):
            theirs.channel.post(Number(number))
        theirs.channel.flush()
    ours = End(sockets[0], most_at_once=1)
    loop = asyncio.get_running_loop()
    parts: list[int] = []

    def turn() -> None:
        parts.append(len(ours.frames))
        if len(ours.frames) < 100:
            loop.call_soon(turn)

    loop.call_soon(turn)
    assert [number.value for number in await ours.hears(100)] == list(range(100))
    assert max(after - before for before, after in pairwise(parts)) <= 2, (
        "the end of a frame, and the beginning of the next"
    )


@in_loop
async def test_several_messages_in_a_frame_of_several_parts_end_the_channel(sockets: Sockets) -> None:
    """Such a frame could take any time to decode."""
    ours = End(sockets[0])
    sockets[1].send(b"\1" + msgspec.msgpack.encode([Word("a"), Word("b")]))
    sockets[1].send(b"\0")
    assert "does not decode" in str(await ours.end())


@in_loop
async def test_a_frame_of_any_size_arrives_whole_and_in_order(sockets: Sockets) -> None:
    ours, theirs = End(sockets[0]), End(sockets[1])
    sent = [Word("x" * size) for size in (3_000_000, 1, 65_530, 65_531, 65_532, 65_533, 131_066, 0)]
    for message in sent:
        ours.channel.post(message)
        ours.channel.flush()
    drained = asyncio.Event()
    ours.channel.when_drained(drained.set)
    assert await theirs.hears(len(sent)) == sent
    assert len(theirs.frames) == len(sent)
    async with asyncio.timeout(60):
        await drained.wait()
    assert ours.channel.backlog_bytes == 0
    ours.channel.close()
    theirs.channel.close()


@in_loop
async def test_more_messages_than_a_frame_holds_make_several(sockets: Sockets) -> None:
    ours, theirs = End(sockets[0]), End(sockets[1])
    sent = [Number(each) for each in range(MOST_MESSAGES + 5)]
    for message in sent:
        theirs.channel.post(message)
    assert await ours.hears(len(sent)) == sent
    ours.channel.close()
    theirs.channel.close()


@in_loop
async def test_descriptors_arrive_with_their_messages_and_are_closed_here(sockets: Sockets) -> None:
    ours, theirs = End(sockets[0]), End(sockets[1], takes_descriptors=True)
    readers = []
    for number in range(channel_module.MOST_DESCRIPTORS + 1):
        reader, writer = os.pipe()
        readers.append(reader)
        ours.channel.post_with(Number(number), writer)
    await theirs.hears(len(readers))
    for reader, writer in zip(readers, theirs.descriptors, strict=True):
        os.write(writer, b"through")
        assert os.read(reader, 10) == b"through"
        os.close(writer)
        assert os.read(reader, 10) == b""  # nobody else holds the other end
        os.close(reader)
    ours.channel.close()
    theirs.channel.close()


@in_loop
async def test_a_peer_that_does_not_read_ends_the_channel(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MOST_BACKLOG_BYTES", 2_000_000)
    ours = End(sockets[0])
    for _ in range(6):
        ours.channel.post(Word("x" * 1_000_000))
        ours.channel.flush()
    assert "wait for it, and it does not read" in (await ours.end() or "")
    assert not ours.channel.is_open
    ours.channel.post(Word("ignored"))


_ONE = b"\0" + msgspec.msgpack.encode([Word("a")])


@pytest.mark.parametrize(
    ("datagrams", "reason"),
    [
        ([b"\0"], "a frame does not decode"),
        ([b"\0\xff\xff"], "a frame does not decode"),
        ([b"\0" + msgspec.msgpack.encode([[3, "a"]])], "a frame does not decode"),
        ([b"\0" + msgspec.msgpack.encode([[1, 7]])], "a frame does not decode"),
        ([b"\0" + msgspec.msgpack.encode([[2, 1]] * (MOST_MESSAGES + 1))], "a frame does not decode"),
        ([_ONE + b"more"], "a frame does not decode"),
        ([b"\1" + b"\xdd" * 1000] * 3, "a frame has more than 2000 bytes"),
    ],
)
@in_loop
async def test_garbage_ends_the_channel_with_a_sentence(sockets: Sockets, datagrams: list[bytes], reason: str) -> None:
    ours = End(sockets[0], most_frame_bytes=2000)
    for datagram in datagrams:
        sockets[1].send(datagram)
    assert reason in (await ours.end() or "")
    assert ours.frames == []


@in_loop
async def test_the_engine_takes_no_descriptors(sockets: Sockets) -> None:
    ours = End(sockets[0])
    reader, writer = os.pipe()
    try:
        socket.send_fds(sockets[1], [_ONE], [writer])
    except PermissionError:  # the kernel lets none in
        sockets[1].close()
    os.close(writer)
    await ours.end()
    assert ours.descriptors == []
    assert os.read(reader, 1) == b""
    os.close(reader)
