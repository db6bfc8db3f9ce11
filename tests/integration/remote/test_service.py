"""The engine's side of a front end: what a scripted front end gets for honest messages, and for lies."""

import asyncio
import mmap
import os
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pybackend.engine.answers import RefusalReason
from pybackend.errors import ErrorCode
from pybackend.frontend import slices
from pybackend.frontend.remote import messages, open_questions, service
from pybackend.frontend.remote.channel import MOST_MESSAGES, Channel, socket_pair
from pybackend.frontend.remote.service import FrontEndService
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import INLINE_BYTES
from tests.integration.models.conftest import Run, running_engine
from tests.support.fuzzing import examples
from tests.support.repositories import IDENTITY, identity_config, write_model

TIMEOUT_S = 20
SMALL = np.arange(4, dtype=np.float32)
LARGE = np.arange(INLINE_BYTES, dtype=np.float32)


def preamble(*inputs: tuple[Any, ...], requested: tuple[str, ...] = ()) -> bytes:
    return msgspec.msgpack.encode((inputs, requested))


def small_infer(ticket: int, handle: int, **changes: Any) -> messages.Infer:
    known = preamble(("IN", "FP32", [4], 16, messages.INLINE))
    return msgspec.structs.replace(
        messages.Infer(ticket, handle, 1, "", known, SMALL.tobytes(), None, None, None), **changes
    )


async def returned(model: Any) -> None:
    """Wait until a model has answered everything, and nobody has memory of it."""
    async with asyncio.timeout(TIMEOUT_S):
        while model.open_requests.count or model.arena.total_bytes:  # noqa: ASYNC110  the engine has no event for that
            await asyncio.sleep(0.01)


class ScriptedFrontEnd:
    """A front end that sends what a test says."""

    def __init__(self, engine: Any) -> None:
        ours, theirs = socket_pair()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.service = FrontEndService(engine, ours, lambda error: self.ended.set_result(str(error)))
        self.socket = theirs
        self.descriptors: list[int] = []
        self._heard: asyncio.Queue[Any] = asyncio.Queue()
        self.channel = Channel(
            asyncio.get_running_loop(),
            theirs,
            messages.from_engine,
            self._on_messages,
            lambda _error: None,
            takes_descriptors=True,
        )

    def _on_messages(self, heard: list[Any], descriptors: list[int]) -> list[Any]:
        self.descriptors.extend(descriptors)
        for message in heard:
            self._heard.put_nowait(message)
        return []

    async def hears(self, kind: type) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while type(message := await self._heard.get()) is not kind:
                pass
        return message

    async def asks(self, message: Any, kind: type) -> Any:
        self.channel.post(message)
        return await self.hears(kind)

    async def opens(self, name: str = "identity", version: str = "") -> int:
        opened: messages.Opened = await self.asks(messages.Open(name, version, "http"), messages.Opened)
        return opened.handle

    async def gets_memory(self, handle: int, nbytes: int) -> tuple[messages.InputSegment, mmap.mmap]:
        memory: messages.InputSegment = await self.asks(
            messages.NeedMemory(handle, "IN", nbytes), messages.InputSegment
        )
        descriptor = self.descriptors.pop(0)
        mapping = mmap.mmap(descriptor, memory.size_bytes)
        os.close(descriptor)
        return memory, mapping

    def close(self) -> None:
        self.service.end()
        self.channel.close()


@pytest.fixture(scope="module")
def engine_and_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "identity", IDENTITY, identity_config())
    write_model(repository, "slow", SLOW, identity_config())
    write_model(repository, "pair", IDENTITY, PAIR)
    with running_engine(repository, explicit=True, startup_models=("identity", "slow", "pair")) as (engine, run):
        yield engine, run, repository


PAIR = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "OTHER" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

SLOW = """
import time
class TritonPythonModel:
    def execute(self, requests):
        while not all(request.is_cancelled() for request in requests):
            time.sleep(0.001)
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("gone")) for _ in requests]
"""


@pytest.fixture
def front_end(engine_and_run: Any) -> Any:
    engine, run, _ = engine_and_run

    async def start() -> ScriptedFrontEnd:
        return ScriptedFrontEnd(engine)

    front_end = run(start())

    async def stop() -> None:
        front_end.close()

    yield front_end
    run(stop())


@pytest.fixture
def run(engine_and_run: Any) -> Run:
    return engine_and_run[1]  # type: ignore[no-any-return]


@pytest.fixture
def engine(engine_and_run: Any) -> Any:
    return engine_and_run[0]


def test_a_small_request_is_answered_in_the_message(front_end: ScriptedFrontEnd, run: Run) -> None:
    async def main() -> None:
        handle = await front_end.opens()
        for ticket in (1, 2):
            answer = await front_end.asks(small_infer(ticket, handle, id="x"), messages.Answered)
            assert answer.ticket == ticket
            (output,) = answer.outputs
            assert (output.name, output.datatype, output.shape, output.data) == ("OUT", "FP32", [4], SMALL.tobytes())

    run(main())


def test_a_large_tensor_is_written_once_and_its_output_is_read_only(
    front_end: ScriptedFrontEnd, run: Run, engine: Any
) -> None:
    async def main() -> None:
        handle = await front_end.opens()
        memory, mapping = await front_end.gets_memory(handle, LARGE.nbytes)
        mapping[64 : 64 + LARGE.nbytes] = LARGE.tobytes()
        known = preamble(("IN", "FP32", [len(LARGE)], LARGE.nbytes, messages.IN_BLOCK))
        front_end.channel.post(messages.Infer(1, handle, 1, "", known, b"", [(memory.segment, 64)], None, None))
        attached = await front_end.hears(messages.Attached)
        (descriptor,) = front_end.descriptors
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, attached.size_bytes)
        outputs = mmap.mmap(descriptor, attached.size_bytes, prot=mmap.PROT_READ)
        os.close(descriptor)
        front_end.descriptors.clear()
        answer = await front_end.hears(messages.Responded)
        (place,) = answer.places
        assert place.segment == attached.segment
        assert outputs[place.offset : place.offset + place.nbytes] == LARGE.tobytes()
        outputs.close()
        mapping.close()
        assert await front_end.hears(messages.Freed) == messages.Freed([(memory.segment, 64)])
        arena = engine.open("identity").model.arena
        assert arena.total_bytes == memory.size_bytes
        front_end.channel.post(messages.Release([answer.number]))
        front_end.channel.post(messages.Return(memory.segment))
        await front_end.asks(messages.Open("nothing", "", "http"), messages.Unopened)
        assert arena.total_bytes == 0

    run(main())


def test_preambles_are_known_up_to_so_many_bytes_in_all(
    front_end: ScriptedFrontEnd, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many handles a front end has for a version, and however many forms its requests have."""
    one = len(small_infer(1, 1).preamble)
    monkeypatch.setattr(service, "MOST_PREAMBLES_BYTES", 40 * one)

    async def main() -> None:
        for _ in range(10):
            handle = await front_end.opens()
            for batch in range(1, 11):
                known = preamble(("IN", "FP32", [batch], 4 * batch, messages.INLINE))
                data = bytes(messages.padded(4 * batch))
                await front_end.asks(small_infer(1, handle, preamble=known, data=data), messages.Answered)
        kept = [each for version in front_end.service._versions.values() for each in version.preambles]
        assert 0 < sum(map(len, kept)) <= 40 * one

    run(main())


def test_a_front_end_that_lets_no_slow_client_go_is_at_fault(front_end: ScriptedFrontEnd, run: Run) -> None:
    """It answers, but not this."""

    async def main() -> None:
        handle = await front_end.opens()
        memory, mapping = await front_end.gets_memory(handle, LARGE.nbytes)
        mapping.close()
        known = preamble(("IN", "FP32", [len(LARGE)], LARGE.nbytes, messages.IN_BLOCK))
        front_end.channel.post(messages.Infer(1, handle, 1, "", known, b"", [(memory.segment, 0)], None, None))
        await front_end.hears(messages.Responded)
        os.close(front_end.descriptors.pop())
        left: list[bool] = []
        assert front_end.service.drop_readers(lambda _data: True, 1, lambda: left.append(True))
        await front_end.hears(messages.DropReaders)
        for _ in range(open_questions.MOST_LOOKS):
            front_end.service.alive()
        with pytest.raises(RemoteProtocolError, match="it keeps the memory of slow clients"):
            front_end.service.alive()
        assert not left
        front_end.service.end()
        assert left

    run(main())


def test_a_front_end_that_does_not_return_memory_is_at_fault(
    front_end: ScriptedFrontEnd, run: Run, engine: Any
) -> None:
    """As long as it leaves the question open, every large request of another front end waits for it."""

    async def main() -> None:
        handle = await front_end.opens()
        _, mapping = await front_end.gets_memory(handle, LARGE.nbytes)
        mapping.close()
        left: list[bool] = []
        assert front_end.service.make_room(engine.open("identity").model.arena, lambda: left.append(True))
        await front_end.hears(messages.MakeRoom)
        for _ in range(open_questions.MOST_LOOKS):
            front_end.service.alive()
        with pytest.raises(RemoteProtocolError, match="it does not say what memory it can return"):
            front_end.service.alive()
        assert not left
        front_end.service.end()
        assert left

    run(main())


def test_no_more_memory_than_the_limit_of_the_model(front_end: ScriptedFrontEnd, run: Run) -> None:
    async def main() -> None:
        handle = await front_end.opens()
        refused = await front_end.asks(messages.NeedMemory(handle, "IN", 2 << 30), messages.NoMemory)
        assert refused.code is ErrorCode.UNAVAILABLE
        assert "no input memory left for model 'identity'" in refused.message

    run(main())


def test_what_a_front_end_had_comes_back_when_it_is_gone(front_end: ScriptedFrontEnd, run: Run, engine: Any) -> None:
    async def main() -> None:
        handle, slow = await front_end.opens(), await front_end.opens("slow")
        await front_end.gets_memory(handle, LARGE.nbytes)
        front_end.channel.post(small_infer(1, slow))
        memory, _mapping = await front_end.gets_memory(slow, LARGE.nbytes)
        known = preamble(("IN", "FP32", [len(LARGE)], LARGE.nbytes, messages.IN_BLOCK))
        front_end.channel.post(messages.Infer(2, slow, 1, "", known, b"", [(memory.segment, 0)], None, None))
        await front_end.asks(messages.Open("nothing", "", "http"), messages.Unopened)
        model = engine.open("slow").model
        assert model.open_requests.count == 2
        front_end.service.end()
        await returned(model)
        assert engine.open("identity").model.arena.total_bytes == 0

    run(main())


def test_a_cancelled_request_is_answered_with_cancelled(front_end: ScriptedFrontEnd, run: Run) -> None:
    async def main() -> None:
        slow = await front_end.opens("slow")
        front_end.channel.post(small_infer(1, slow))
        front_end.channel.post(small_infer(2, slow))
        front_end.channel.post(messages.CancelTicket(2))
        front_end.channel.post(messages.CancelTicket(77))  # it was answered, or never was
        answer = await front_end.hears(messages.Responded)
        assert (answer.ticket, answer.failure.code) == (2, ErrorCode.CANCELLED)
        front_end.channel.post(messages.CancelTicket(1))
        assert (await front_end.hears(messages.Responded)).ticket == 1

    run(main())


def test_requests_that_contradict_the_signature_are_refused_and_counted(
    front_end: ScriptedFrontEnd, run: Run, engine: Any
) -> None:
    async def main() -> None:
        handle = await front_end.opens()
        before = sum(engine.refusals.counts.values())
        for ticket, (known, text) in enumerate(
            [
                (preamble(("OTHER", "FP32", [4], 16, 0)), "unexpected inference input 'OTHER'"),
                (preamble(("IN", "INT32", [4], 16, 0)), "data-type is 'INT32'"),
                (preamble(("IN", "FP32", [2, 2], 16, 0)), "unexpected shape"),
                (preamble(("IN", "FP32", [5], 16, 0)), "input byte size mismatch"),
                (preamble(("IN", "FP32", [4], 16, 0), requested=("NO",)), "unexpected inference output 'NO'"),
            ]
        ):
            answer = await front_end.asks(small_infer(ticket, handle, preamble=known), messages.Responded)
            assert answer.failure.code is ErrorCode.INVALID_ARG
            assert text in answer.failure.message
        assert sum(engine.refusals.counts.values()) == before + 5

    run(main())


def test_a_replaced_version_is_closed_and_its_requests_are_checked_again(
    engine_and_run: Any, front_end: ScriptedFrontEnd, run: Run
) -> None:
    engine, _, repository = engine_and_run
    write_model(repository, "changing", IDENTITY, identity_config(dims="[ 4 ]"))

    async def main() -> None:
        await engine.control.load("changing")
        handle = await front_end.opens("changing")
        assert (await front_end.asks(small_infer(1, handle), messages.Answered)).ticket == 1
        write_model(repository, "changing", IDENTITY, identity_config(dims="[ 2, 2 ]"))
        await engine.control.load("changing")
        answer = await front_end.asks(small_infer(2, handle), messages.Responded)
        assert "unexpected shape for input 'IN'" in answer.failure.message
        known = preamble(("IN", "FP32", [2, 2], 16, messages.INLINE))
        assert (await front_end.asks(small_infer(3, handle, preamble=known), messages.Answered)).ticket == 3
        front_end.service.check()
        assert await front_end.hears(messages.Closed) == messages.Closed(handle)
        assert await front_end.opens("changing") != handle
        front_end.channel.post(messages.Forget(handle))
        await engine.control.unload("changing")
        unopened = await front_end.asks(messages.Open("changing", "", "http"), messages.Unopened)
        assert unopened.kind == 2

    run(main())


def test_counts_are_settled(front_end: ScriptedFrontEnd, run: Run, engine: Any) -> None:
    async def main() -> None:
        before = engine.answers["http"].ok
        settled = asyncio.create_task(front_end.service.settle())
        asked = await front_end.hears(messages.Settle)
        front_end.channel.post(messages.Counted("http", "200", 7))
        front_end.channel.post(messages.Settled(asked.number))
        await settled
        assert engine.answers["http"].ok == before + 7

    run(main())


def test_a_late_settlement_breaks_no_rule(front_end: ScriptedFrontEnd, run: Run) -> None:
    async def main() -> None:
        settled = asyncio.create_task(front_end.service.settle())
        asked = await front_end.hears(messages.Settle)
        settled.cancel()
        await asyncio.wait([settled])
        front_end.channel.post(messages.Settled(asked.number))
        await front_end.opens()
        assert not front_end.ended.done()

    run(main())


def test_the_memory_of_a_request_that_breaks_a_rule_comes_back(
    front_end: ScriptedFrontEnd, run: Run, engine: Any
) -> None:
    async def main() -> None:
        handle = await front_end.opens("pair")
        memory, mapping = await front_end.gets_memory(handle, LARGE.nbytes)
        mapping.close()
        each = "FP32", [len(LARGE)], LARGE.nbytes, messages.IN_BLOCK
        known, first = preamble(("IN", *each), ("OTHER", *each)), (memory.segment, 0)
        front_end.channel.post(
            messages.Infer(1, handle, 1, "", known, b"", [first, (memory.segment + 1, 0)], None, None)
        )
        assert await front_end.ended == "a request names memory that it may not use"
        front_end.service.end()
        await returned(engine.open("pair").model)

    run(main())


def test_a_frame_of_much_work_leaves_others_their_turns(
    front_end: ScriptedFrontEnd, run: Run, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One front end tells the most that a frame holds, another one asks one thing right behind it."""
    monkeypatch.setattr(service, "_SLICE_NS", 0)

    async def main() -> None:
        other, before = ScriptedFrontEnd(engine), engine.answers["http"].ok
        try:
            for _ in range(MOST_MESSAGES):
                front_end.channel.post(messages.Counted("http", "200", 1))
            await other.asks(messages.Open("nothing", "", "http"), messages.Unopened)
            assert engine.answers["http"].ok - before < MOST_MESSAGES
            await front_end.asks(messages.Open("nothing", "", "http"), messages.Unopened)
            assert engine.answers["http"].ok - before == MOST_MESSAGES
        finally:
            other.close()

    run(main())


def test_the_end_of_a_front_end_leaves_others_their_turns(
    front_end: ScriptedFrontEnd, run: Run, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests it had open."""
    monkeypatch.setattr(slices, "SLICE_S", 0)
    most = 300

    async def main() -> None:
        other = ScriptedFrontEnd(engine)
        try:
            slow = await front_end.opens("slow")
            for ticket in range(most):
                front_end.channel.post(small_infer(ticket, slow))
            await front_end.asks(messages.Open("nothing", "", "http"), messages.Unopened)
            model = engine.open("slow").model
            assert model.open_requests.count == most
            front_end.service.end()
            await other.asks(messages.Open("nothing", "", "http"), messages.Unopened)
            assert model.open_requests.count
            await returned(model)
        finally:
            other.close()

    run(main())


@pytest.mark.parametrize("ended_s", [float("nan"), float("inf"), 1e300, -1.0])
def test_a_time_that_no_log_can_write_ends_the_front_end(ended_s: float, front_end: ScriptedFrontEnd, run: Run) -> None:
    async def main() -> None:
        front_end.channel.post(messages.Accessed("http", "", "GET", "/", 200, 0, 0, 0, ended_s, {}))
        async with asyncio.timeout(TIMEOUT_S):
            assert "a frame does not decode" in await front_end.ended

    run(main())


async def _with_memory(front_end: ScriptedFrontEnd, handle: int, *places: tuple[int, int]) -> list[messages.Infer]:
    memory, mapping = await front_end.gets_memory(handle, LARGE.nbytes)
    mapping.close()
    known = preamble(("IN", "FP32", [len(LARGE)], LARGE.nbytes, messages.IN_BLOCK))
    return [
        messages.Infer(ticket, handle, 1, "", known, b"", [(memory.segment + wrong, offset)], None, None)
        for ticket, (wrong, offset) in enumerate(places)
    ]


LIES: dict[str, Callable[[int], Any]] = {
    "a handle that it does not have": lambda handle: small_infer(1, handle + 1),
    "a handle forgotten twice": lambda handle: [messages.Forget(handle), messages.Forget(handle)],
    "a ticket twice": lambda handle: [small_infer(1, handle), small_infer(1, handle)],
    "too few bytes": lambda handle: small_infer(1, handle, data=b"123"),
    "too many bytes": lambda handle: small_infer(1, handle, data=bytes(17)),
    "an input without its padding": lambda handle: small_infer(
        1, handle, data=bytes(12), preamble=preamble(("IN", "FP32", [3], 12, 0))
    ),
    "a preamble of more bytes than a message can have": lambda handle: small_infer(
        1, handle, preamble=preamble(("IN", "FP32", [4], 2**62, 0))
    ),
    "a preamble that is none": lambda handle: small_infer(1, handle, preamble=b"\xc1"),
    "a preamble with a datatype that there is not": lambda handle: small_infer(
        1, handle, preamble=preamble(("IN", "FP33", [4], 16, 0))
    ),
    "more inputs than its model has": lambda handle: small_infer(
        1, handle, preamble=preamble(("IN", "FP32", [4], 16, 0), ("OTHER", "FP32", [4], 16, 0)), data=bytes(32)
    ),
    "more outputs than its model has": lambda handle: small_infer(
        1, handle, preamble=preamble(("IN", "FP32", [4], 16, 0), requested=("OUT", "OTHER"))
    ),
    "more places for outputs than its model has": lambda handle: small_infer(
        1, handle, regions=messages.Regions([], {name: messages.RegionPlace("r", 0, 16) for name in ("OUT", "OTHER")})
    ),
    "two inputs of one name": lambda handle: small_infer(
        1, handle, preamble=preamble(("IN", "FP32", [4], 8, 0), ("IN", "FP32", [4], 8, 0))
    ),
    "a negative dimension": lambda handle: small_infer(1, handle, preamble=preamble(("IN", "FP32", [-4], 16, 0))),
    "a block without a place": lambda handle: small_infer(
        1, handle, data=b"", preamble=preamble(("IN", "FP32", [4], 16, 1))
    ),
    "a region without a place": lambda handle: small_infer(
        1, handle, data=b"", preamble=preamble(("IN", "FP32", [4], 16, 2))
    ),
    "memory that it does not have": lambda handle: small_infer(
        1, handle, data=b"", preamble=preamble(("IN", "FP32", [4], 16, 1)), blocks=[(1 << 40, 0)]
    ),
    "a segment that it does not have": lambda _: messages.Return(12345),
    "a response that it does not have": lambda _: messages.Release([1]),
    "an answer to no question": lambda _: messages.Settled(1),
    "room that nobody asked for": lambda _: messages.Room(1),
    "memory that nobody asked for": lambda _: messages.Dropped(1),
    "a code that there is not": lambda _: messages.Counted("http", "2000", 1),
    "a name longer than any": lambda _: messages.Open("x" * 8193, "", "http"),
    "a refusal for a name longer than any": lambda _: messages.Refused(
        "http", RefusalReason.INVALID, "", "x" * 8193, ""
    ),
    "no messages": lambda _: b"\0\xc1",
    "an unknown kind": lambda _: b"\0" + msgspec.msgpack.encode([[31, 1]]),
    "a message for front ends": lambda _: b"\0" + msgspec.msgpack.encode([messages.Settle(1)]),
    "a number beyond 63 bits": lambda _: b"\0" + msgspec.msgpack.encode([[3, 2**63]]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_the_front_end_and_nobody_else(
    lie: str, front_end: ScriptedFrontEnd, run: Run, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        handle = await front_end.opens()
        told = LIES[lie](handle)
        if isinstance(told, bytes):
            front_end.socket.send(told)
        for message in told if isinstance(told, list) else [told] * (not isinstance(told, bytes)):
            front_end.channel.post(message)
        async with asyncio.timeout(TIMEOUT_S):
            reason = await front_end.ended
        assert reason != "None"
        assert "see the log" not in reason
        front_end.service.end()
        honest = ScriptedFrontEnd(engine)
        try:
            await honest.asks(small_infer(1, await honest.opens()), messages.Answered)
        finally:
            honest.close()

    run(main())
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("places", [[(0, 1 << 30)], [(1, 0)], [(0, 0), (0, 0)], [(0, 8)]])
def test_blocks_outside_or_in_use_end_the_front_end(
    places: list[tuple[int, int]], front_end: ScriptedFrontEnd, run: Run, engine: Any
) -> None:
    async def main() -> None:
        for message in await _with_memory(front_end, await front_end.opens("slow"), *places):
            front_end.channel.post(message)
        async with asyncio.timeout(TIMEOUT_S):
            assert await front_end.ended == "a request names memory that it may not use"
        front_end.service.end()
        model = engine.open("slow").model
        await returned(model)

    run(main())


def _honest(handle: int) -> list[Any]:
    """One message of each kind, as msgpack has it."""
    told = [
        messages.Open("identity", "", "grpc"),
        small_infer(1, handle, options=messages.RareFields(7, 3, 1, 10**9, {"a": 1.5}), id="x"),
        small_infer(2, handle, regions=messages.Regions([], {"OUT": messages.RegionPlace("r", 0, 16)})),
        messages.CancelTicket(1),
        messages.SetPaused(1, paused=True),
        messages.Release([]),
        messages.NeedMemory(handle, "IN", LARGE.nbytes),
        messages.Refused("http", RefusalReason.INVALID, "no", "identity", "here"),
        messages.Counted("grpc", "OK", 1),
        messages.Forget(handle),
    ]
    return [msgspec.msgpack.decode(msgspec.msgpack.encode(message)) for message in told]


_ODD = [None, -1, 2**63, 2**64 - 1, 1.5, "text", b"bytes", [], {}, [[]], [[None]], True, float("nan"), 0]


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_front_end_sends_the_engine_goes_on(data: Any, engine_and_run: Any, caplog: Any) -> None:
    """Messages with a part replaced, removed or added, and bytes of frames that were changed."""
    engine, run, _ = engine_and_run

    async def main() -> None:
        front_end = ScriptedFrontEnd(engine)
        try:
            told = _honest(await front_end.opens())
            message = told[data.draw(st.integers(0, len(told) - 1))]
            at = data.draw(st.integers(0, len(message) - 1))
            action = data.draw(st.sampled_from(["replace", "remove", "insert", "bytes"]))
            if action == "remove":
                del message[at]
            elif action != "bytes":
                message[at : at + (action == "replace")] = [data.draw(st.sampled_from(_ODD))]
            frame = bytearray(b"\0" + msgspec.msgpack.encode(told))
            if action == "bytes":
                frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
            front_end.socket.send(frame)
            asked = asyncio.create_task(front_end.asks(messages.Open("nothing", "", "http"), messages.Unopened))
            await asyncio.wait({asked, front_end.ended}, return_when=asyncio.FIRST_COMPLETED)
            assert front_end.ended.done() or asked.done()
            asked.cancel()
            front_end.service.end()
            honest = ScriptedFrontEnd(engine)
            await honest.asks(small_infer(1, await honest.opens()), messages.Answered)
            honest.close()
        finally:
            front_end.close()
            for descriptor in front_end.descriptors:
                os.close(descriptor)

    run(main())
    assert not [record for record in caplog.records if record.exc_info]
