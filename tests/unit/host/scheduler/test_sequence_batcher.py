"""The sequence batcher against its rules, with instances that only remember what they were given."""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.modelconfig.schema import BatchingConfig
from pybackend.modelconfig.sequences import ControlKind, SequenceConfig, SequenceControl, SequenceState
from pybackend.scheduler.sequence_batcher import SequenceBatcher
from pybackend.scheduler.sequence_inputs import ImplicitStates

START, END = 1, 2
LONG_US = 60_000_000
CONTROLS = (
    SequenceControl("START", ControlKind.START, "INT32"),
    SequenceControl("READY", ControlKind.READY, "INT32"),
)


class Instance:
    """Takes one batch at a time."""

    def __init__(self, name):
        self.name = name
        self.is_up = True
        self.batch = []
        self.batches = []
        self.prefetch_capacity = 0
        self.executed = asyncio.Event()
        self._executions = 0

    @property
    def is_idle(self):
        return self.is_up and not self.batch

    def execute(self, batch):
        assert self.is_idle
        self._executions += 1
        for index, pending in enumerate(batch):
            assert not pending.answered
            assert pending.is_waiting or pending.is_filler
            pending.taken_by, pending.execution, pending.index = self, self._executions, index
        self.batch = list(batch)
        self.batches.append(list(batch))
        self.executed.set()

    def cancel(self, pending):
        """It is told, and goes on."""


class Scene:
    """A batcher, its instances, and what a model does for both."""

    def __init__(self, instances=1, slots=2, strategy="direct", ordered=False, **config):
        self.instances = [Instance(str(number)) for number in range(instances)]
        self.members = list(self.instances)
        oldest = BatchingConfig(max_batch_size=slots, preserve_ordering=ordered) if strategy == "oldest" else None
        config = {"idle_us": LONG_US, "controls": CONTROLS, **config}
        self.config = SequenceConfig("m", slots, slots, oldest=oldest, **config)
        self.batcher = SequenceBatcher(self.config, ImplicitStates(self.config, Path()), self.members, self, ["OUT"])
        self.answers = {}
        self.batch_reasons = []

    # What a model does

    def answer(self, pending, error=None):
        assert not pending.answered or pending.cancelled
        pending.answered = True
        self.batcher.path(pending, InferenceResponse("m", "1", pending.request.id, error=error))

    def on_refused(self, batch, error):
        for pending in batch:
            self.answer(pending, error)

    def on_batch(self, reason):
        self.batch_reasons.append(reason)

    def lease(self, nbytes):
        raise InferenceError("no memory", ErrorCode.UNAVAILABLE)

    def cancel(self, pending):
        for removed in self.batcher.remove(pending):
            removed.cancelled = removed.answered = True
            error = InferenceError("cancelled", ErrorCode.CANCELLED)
            asyncio.get_running_loop().call_soon(self.answer, removed, error)

    def send(self, correlation_id, flags=0, name="", **fields):
        request = InferenceRequest("m", id=name, inputs=[InputTensor("IN", "FP32", (1, 1), b"1234")])
        request.correlation_id, request.flags, request.queued_ns = correlation_id, flags, time.monotonic_ns()
        for field, value in fields.items():
            setattr(request, field, value)
        answers = []
        pending = PendingRequest(request, answers.append, self)
        self.batcher.enqueue(pending)
        self.answers[pending] = answers
        return pending

    # What instances do

    def finish(self, number=0):
        instance = self.instances[number]
        batch, instance.batch = instance.batch, []
        for pending in batch:
            if not pending.is_filler:
                self.answer(pending)
        self.batcher.dispatch()

    def hand_back(self, number):
        instance = self.instances[number]
        batch, instance.batch = instance.batch, []
        for pending in batch:
            pending.wait()
        self.batcher.requeue(batch)
        self.batcher.dispatch()

    def die(self, number, begun):
        instance = self.instances[number]
        batch, instance.batch, instance.is_up = instance.batch, [], False
        error = InferenceError("it died")
        for pending in batch:
            pending.wait()
            if begun and not pending.is_filler:
                self.answer(pending, error)
        self.batcher.requeue([] if begun else batch)
        self.batcher.on_lost(instance, error)
        self.batcher.dispatch()

    def join(self):
        self.instances.append(Instance(str(len(self.instances))))
        self.members.append(self.instances[-1])
        self.batcher.change_instances()

    def leave(self, number):
        self.members.remove(self.instances[number])
        self.batcher.change_instances()

    def revive(self, number):
        self.instances[number].is_up = True
        self.batcher.dispatch()

    def reschedule(self, number, places):
        instance = self.instances[number]
        batch, instance.batch = instance.batch, []
        for place, pending in enumerate(batch):
            if pending.is_filler:
                continue
            if place in places:
                pending.wait()
                self.batcher.reschedule(pending)
            else:
                self.answer(pending)
        self.batcher.dispatch()

    def names(self, number=0):
        return [
            " ".join("-" if pending.is_filler else pending.request.id for pending in batch)
            for batch in self.instances[number].batches
        ]


def play(scenario):
    failures = []

    async def timed():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(timed())
    assert not failures


async def turn():
    for _ in range(4):
        await asyncio.sleep(0)


def errors(scene, pending):
    return [response.error.message for response in scene.answers[pending] if response.error is not None]


def test_direct_batches_reach_up_to_the_last_slot_that_is_ready():
    async def scenario():
        scene = Scene(slots=4)
        for name in "abc":
            scene.send(name, START, name)
        await turn()
        assert scene.names() == ["a b c"]
        scene.finish()
        scene.send("b", 0, "b")
        await turn()
        scene.finish()
        scene.send("c", END, "c")
        await turn()
        scene.finish()
        assert scene.names() == ["a b c", "- b", "- - c"]
        filler, real = scene.instances[0].batches[1]
        assert [(t.name, t.shape, bytes(t.data)) for t in filler.request.inputs] == [
            ("IN", (1, 1), bytes(4)),
            ("START", (1, 1), bytes(4)),
            ("READY", (1, 1), bytes(4)),
        ]
        assert [bytes(t.data) for t in real.request.inputs] == [b"1234", bytes(4), b"\1\0\0\0"]

    play(scenario)


def test_slots_are_filled_evenly():
    async def scenario():
        scene = Scene(instances=2, slots=2)
        for name in "abcde":
            scene.send(name, START, name)
        await turn()
        assert (scene.names(0), scene.names(1)) == (["a c"], ["b d"])
        scene.finish(0)
        scene.send("a", END, "a2")
        await turn()
        scene.finish(0)
        await turn()
        assert scene.names(0) == ["a c", "a2", "e"]

    play(scenario)


def test_one_request_of_a_sequence_at_a_time():
    async def scenario():
        for strategy in ("direct", "oldest"):
            scene = Scene(strategy=strategy)
            for name, flags in (("1", START), ("2", 0), ("3", END)):
                scene.send(7, flags, name)
            await turn()
            for expected in (["1"], ["1", "2"], ["1", "2", "3"]):
                assert scene.names() == expected
                scene.finish()
                await turn()
            assert len(scene.batcher) == 0

    play(scenario)


def test_idle_sequences_are_over_exactly_when_their_time_is():
    async def scenario():
        scene = Scene(slots=1, idle_us=50_000)
        scene.send(1, START)
        await turn()
        ended_ns = time.monotonic_ns()
        scene.finish()
        scene.instances[0].executed.clear()
        waiting = scene.send(2, START)
        await scene.instances[0].executed.wait()
        assert time.monotonic_ns() - ended_ns >= 50_000_000
        assert scene.instances[0].batch == [waiting]
        with pytest.raises(InferenceError, match="must specify the START flag"):
            scene.send(1)

    play(scenario)


def test_a_sequence_that_waits_for_an_answer_is_not_idle():
    async def scenario():
        scene = Scene(idle_us=20_000)
        scene.send(1, START)
        await asyncio.sleep(0.08)
        scene.send(1)
        scene.finish()
        await turn()
        scene.finish()
        await asyncio.sleep(0.08)
        with pytest.raises(InferenceError, match="must specify the START flag"):
            scene.send(1)

    play(scenario)


def test_rescheduled_requests_let_others_pass_under_oldest():
    async def scenario():
        scene = Scene(slots=2, strategy="oldest", iterative=True)
        first = scene.send(0, 0, "a")
        await turn()
        scene.send(0, 0, "b")
        assert first.request.flags == START
        await turn()
        scene.reschedule(0, {0})
        await turn()
        assert first.request.flags == 0
        assert scene.names() == ["a", "b a"]
        scene.finish()
        await turn()
        assert len(scene.batcher) == 0
        assert scene.batcher._slots._pool.acquire() is not None

    play(scenario)


def test_a_state_for_which_there_is_no_memory_ends_its_sequence():
    async def scenario():
        large = SequenceState("A", "B", "FP32", (10_000,), (10_000,))
        for strategy in ("direct", "oldest"):
            scene = Scene(strategy=strategy, states=(large,))
            first = scene.send(1, START)
            second = scene.send(1)
            await turn()
            assert errors(scene, first) == ["no memory"]
            assert "its first request was not executed" in errors(scene, second)[0]
            sequence = scene.batcher.active._by_id[1]
            for _ in range(2):
                with pytest.raises(InferenceError, match="is ended"):
                    scene.send(1)
            assert sequence.lost.__traceback__ is None  # it would keep all requests that were refused

    play(scenario)


def test_a_request_that_is_withdrawn_from_its_batcher_keeps_nobodys_answer_back():
    async def scenario():
        scene = Scene(slots=2, strategy="oldest", ordered=True, iterative=True)
        first, second = scene.send(0, 0, "a"), scene.send(0, 0, "b")
        await turn()
        assert scene.names() == ["a b"]
        released = []
        for text, pending in (("a1", first), ("b1", second)):
            response = InferenceResponse("m", "1", pending.request.id, final=False)
            response.on_release = partial(released.append, text)
            scene.batcher.path(pending, response)
        assert [len(scene.answers[pending]) for pending in (first, second)] == [1, 0]
        third = scene.send(0, 0, "c")
        scene.instances[0].is_up = False  # what is not under way waits
        scene.reschedule(0, {0})  # "b" is answered, behind "a", which is to be executed once more
        assert (second.answered, scene.answers[second]) == (True, [])
        first.cancel()
        assert [response.final for response in scene.answers[second]] == [False, True]
        assert released == []
        await turn()
        assert errors(scene, first) == ["cancelled"]
        scene.revive(0)
        await turn()
        scene.finish()
        assert len(scene.answers[third]) == 1

    play(scenario)


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_with_one_request_of_a_sequence_all_that_wait_are_cancelled(strategy, cancelled):
    """Those of a sequence in a slot, behind one that runs, and those of a sequence without a slot; not those of others."""

    async def scenario():
        scene = Scene(slots=1, strategy=strategy)
        running = scene.send(1, START)
        await turn()
        in_slot = [scene.send(1, 0), scene.send(1, 0), scene.send(1, END)]
        in_backlog = [scene.send(2, START), scene.send(2, 0), scene.send(2, END)]
        other = scene.send(3, START | END)
        await turn()
        for waiting in (in_slot, in_backlog):
            waiting[cancelled].cancel()
            await turn()
            assert [errors(scene, pending) for pending in waiting] == [["cancelled"]] * 3
        assert not running.answered
        scene.finish()
        await turn()
        assert (running.answered, errors(scene, running)) == (True, [])
        assert scene.instances[0].batch == [other]
        scene.finish()
        await turn()
        assert len(scene.batcher) == 0
        assert scene.batcher.active._by_id.keys() <= {2}

    play(scenario)


def test_everything_that_waits_can_be_taken_out():
    async def scenario():
        for strategy in ("direct", "oldest"):
            scene = Scene(slots=1, strategy=strategy)
            scene.send(1, START)
            await turn()
            waiting = [scene.send(1), scene.send(2, START), scene.send(2, END)]
            assert len(scene.batcher) == 3
            assert scene.batcher.take_all() == waiting
            for pending in waiting:
                scene.answer(pending, InferenceError("stopped"))
            await turn()
            scene.finish()
            assert len(scene.batcher) == 0
            scene.batcher.close()

    play(scenario)


def test_queueing_many_requests_costs_no_more_per_request_than_few():
    """Each request goes in and comes out in logarithmic time; here, so that a quadratic queue would not be through in
    time."""

    async def scenario():
        scene = Scene(slots=1)
        scene.send("held", START)
        await turn()
        waiting = [scene.send(number, START, timeout_us=LONG_US) for number in range(1, 20_001)]
        for pending in waiting[::2]:
            pending.cancel()
        await turn()
        for pending in reversed(waiting[1::2]):
            pending.cancel()
        await turn()
        assert len(scene.batcher) == 0

    play(scenario)


class SequenceMachine(RuleBasedStateMachine):
    """Clients, instances and deaths in any order: nothing is lost, nothing answered twice, order is kept."""

    strategy = "direct"
    ordered = False

    @initialize(instances=st.integers(1, 2), slots=st.integers(1, 2))
    def begin(self, instances, slots):
        self.loop = asyncio.new_event_loop()
        self.failures = []
        self.loop.set_exception_handler(lambda _loop, context: self.failures.append(context))
        self.executed = {}
        self.sent = []

        async def make():
            return Scene(instances, slots, self.strategy, self.ordered)

        self.scene = self.loop.run_until_complete(make())
        self.sequence_of = {}

    def run(self, function, *arguments):
        async def call():
            result = function(*arguments)
            await turn()
            return result

        return self.loop.run_until_complete(call())

    @rule(correlation_id=st.integers(1, 3), flags=st.sampled_from([START, 0, END, START | END]))
    def send(self, correlation_id, flags):
        def attempt():
            try:
                pending = self.scene.send(correlation_id, flags, str(len(self.sent)))
            except InferenceError:
                assert not flags & START
                return
            self.sent.append(pending)
            self.sequence_of[pending] = self.scene.batcher._items[pending].sequence

        self.run(attempt)

    def choose(self, data, wanted):
        chosen = [number for number, instance in enumerate(self.scene.instances) if wanted(instance)]
        return data.draw(st.sampled_from(chosen)) if chosen else None

    @rule(data=st.data())
    def finish(self, data):
        number = self.choose(data, lambda instance: instance.batch)
        if number is not None:
            self.run(self.scene.finish, number)

    @rule(data=st.data())
    def hand_back(self, data):
        number = self.choose(data, lambda instance: instance.batch)
        if number is not None:
            batch = self.scene.instances[number].batch
            for pending in batch:
                self.executed.pop(pending, None)
            self.scene.instances[number].batches.remove(batch)
            self.run(self.scene.hand_back, number)

    @rule(data=st.data(), begun=st.booleans())
    def die(self, data, begun):
        number = self.choose(data, lambda instance: instance.is_up)
        if number is not None:
            if not begun:
                for pending in self.scene.instances[number].batch:
                    self.executed.pop(pending, None)
            self.run(self.scene.die, number, begun)

    @rule(data=st.data())
    def revive(self, data):
        number = self.choose(data, lambda instance: not instance.is_up)
        if number is not None:
            self.run(self.scene.revive, number)

    @rule(data=st.data(), leaves=st.booleans())
    def change_instances(self, data, leaves):
        members = self.scene.members
        number = self.choose(data, lambda instance: instance in members) if leaves and len(members) > 1 else None
        if number is not None:
            self.run(self.scene.leave, number)
            assert self.scene.instances[number].batch == [] or self.scene.batcher.keeps(self.scene.instances[number])
        elif len(self.scene.instances) < 6:
            self.run(self.scene.join)

    @rule(data=st.data(), waiting=st.booleans())
    def cancel(self, data, waiting):
        chosen = [each for each in self.sent if not each.answered and each.is_waiting is waiting]
        if chosen:
            self.run(chosen[data.draw(st.integers(0, len(chosen) - 1))].cancel)

    @invariant()
    def holds(self):
        assert not self.failures, "a callback has failed"
        batcher = self.scene.batcher
        assert len(batcher) == sum(each.is_waiting and not self.scene.answers[each] for each in self.sent)
        running = {}
        for number, instance in enumerate(self.scene.instances):
            # What has left is forgotten with the end of its last sequence, and executes nothing more.
            is_known = instance in self.scene.members or batcher.keeps(instance)
            assert is_known == (instance in batcher._slots._numbers)
            assert is_known or not instance.batch
            assert len(instance.batch) <= self.scene.config.slot_count
            for pending in instance.batch:
                if pending.is_filler:
                    continue
                sequence = self.sequence_of[pending]
                assert running.setdefault(sequence, pending) is pending, "two requests of a sequence at once"
                self.executed[pending] = number
        for pending in self.sent:
            finals = self.scene.answers[pending]
            assert len(finals) <= 1
        self.check_order()

    def check_order(self):
        by_sequence = {}
        for pending in self.sent:
            if pending in self.executed:
                by_sequence.setdefault(self.sequence_of[pending], []).append(pending)
        for sequence, done in by_sequence.items():
            assert len({self.executed[pending] for pending in done}) == 1, "a sequence has changed its instance"
            assert done[0].request.flags & START, "a sequence begins in the middle"
            following = [p for p in self.sent if self.sequence_of[p] is sequence and not p.cancelled]
            begun = [p in self.executed for p in following]
            assert begun == sorted(begun, reverse=True), "a request has overtaken another one"

    def teardown(self):
        if not hasattr(self, "scene"):
            return
        for number in range(len(self.scene.instances)):
            self.run(self.scene.revive, number)
        # Sequences that were not ended hold their slots for as long as they may be silent: end them.
        for _ in range(200):
            for sequence in list(self.scene.batcher.active._by_id.values()):
                if sequence.lost is None:
                    self.send_end(sequence.id)
            for number, instance in enumerate(self.scene.instances):
                if instance.batch:
                    self.run(self.scene.finish, number)
            if all(self.scene.answers[pending] for pending in self.sent):
                break
        assert all(len(self.scene.answers[pending]) == 1 for pending in self.sent), "a request was lost"
        batcher = self.scene.batcher
        assert not batcher._items
        assert not batcher._slots.backlog
        assert not any(batcher._slots._served.values())
        self.scene.batcher.close()
        self.loop.close()

    def send_end(self, correlation_id):
        def end():
            pending = self.scene.send(correlation_id, END)
            self.sent.append(pending)
            self.sequence_of[pending] = self.scene.batcher._items[pending].sequence

        self.run(end)


class OldestMachine(SequenceMachine):
    strategy = "oldest"


class OrderedMachine(SequenceMachine):
    strategy = "oldest"
    ordered = True


SETTINGS = settings(max_examples=80, stateful_step_count=40)
TestDirect = SequenceMachine.TestCase
TestDirect.settings = SETTINGS
TestOldest = OldestMachine.TestCase
TestOldest.settings = SETTINGS
TestOrdered = OrderedMachine.TestCase
TestOrdered.settings = SETTINGS
