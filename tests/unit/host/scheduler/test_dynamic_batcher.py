"""The dynamic batcher against its rules, with instances that do nothing but remember what they were given."""

import asyncio
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest, RequestHolder, to_sender
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.modelconfig.schema import BatchingConfig, QueuePolicy
from pybackend.scheduler.dynamic_batcher import DynamicBatcher
from pybackend.scheduler.ordered_delivery import DeliveryLine, OrderedDelivery
from pybackend.scheduler.scheduler import BatchReason

DEADLINE_S = 60


class Instance:
    """Takes one batch at a time, and ``prefetch_capacity`` more."""

    def __init__(self):
        self.batches = []
        self.is_idle = True
        self.prefetch_capacity = 0

    def execute(self, batch):
        self.batches.append(list(batch))
        if self.is_idle:
            self.is_idle = False
        else:
            self.prefetch_capacity -= 1


class Owner:
    """Remembers what became of requests."""

    def __init__(self):
        self.refused = []
        self.reasons = []
        self.changed = asyncio.Event()

    def on_refused(self, batch, error):
        self.refused += [(pending, error) for pending in batch]
        self.changed.set()

    def on_batch(self, reason):
        self.reasons.append(reason)
        self.changed.set()

    async def until(self, true):
        """Wait for something to have happened."""
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                self.changed.clear()
                await self.changed.wait()


class Scene:
    """A batcher with its instances and its owner."""

    def __init__(self, instances=1, shape_key=None, line=None, **config):
        self.owner = Owner()
        self.instances = [Instance() for _ in range(instances)]
        self.batcher = DynamicBatcher(
            BatchingConfig(**{"max_batch_size": 8, **config}), self.instances, self.owner, shape_key, line
        )

    def add(self, *names, batch_size=1, **fields):
        """Enqueue requests of these ids."""
        added = []
        for name in names:
            request = InferenceRequest("m", id=name)
            request.batch_size = batch_size
            request.queued_ns = time.monotonic_ns()
            for field, value in fields.items():
                setattr(request, field, value)
            pending = PendingRequest(request, lambda response: None, RequestHolder())
            self.batcher.enqueue(pending)
            added.append(pending)
        return added

    def free(self, instance=0):
        """An instance has answered."""
        self.instances[instance].is_idle = True
        self.batcher.dispatch()

    def batches(self, instance=0):
        """Ids of the requests that an instance was given, batch by batch."""
        return ["".join(pending.request.id for pending in batch) for batch in self.instances[instance].batches]


def play(scenario):
    """Run a coroutine to its end."""

    async def timed():
        async with asyncio.timeout(2 * DEADLINE_S):
            await scenario()

    asyncio.run(timed())


async def turn():
    """Let what is scheduled run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_an_idle_instance_does_not_wait_and_a_busy_one_lets_batches_grow():
    async def scenario():
        scene = Scene()
        scene.add("a")
        await turn()
        assert scene.batches() == ["a"]
        scene.add(*"bcdefghijklm")
        await turn()
        assert scene.batches() == ["a"]
        scene.free()
        scene.free()
        assert scene.batches() == ["a", "bcdefghi", "jklm"]
        assert scene.owner.reasons == [BatchReason.IDLE, BatchReason.FULL, BatchReason.IDLE]

    play(scenario)


def test_requests_of_one_turn_are_batched():
    async def scenario():
        scene = Scene()
        scene.add(*"abc")
        await turn()
        assert scene.batches() == ["abc"]

    play(scenario)


@pytest.mark.parametrize(
    ("waiting", "batches"),
    [
        (3, ["abc"]),
        (4, ["abcd"]),
        (5, ["abcd", "e"]),
        (7, ["abcdef", "g"]),
        (9, ["abcdef", "ghi"]),
    ],
    ids=str,
)
def test_preferred_sizes(waiting, batches):
    async def scenario():
        scene = Scene(preferred_batch_sizes=frozenset({4, 6}))
        scene.instances[0].is_idle = False
        scene.add(*"abcdefghi"[:waiting])
        await turn()
        for _ in batches:
            scene.free()
        assert scene.batches() == batches

    play(scenario)


def test_requests_are_never_split():
    async def scenario():
        scene = Scene(max_batch_size=4)
        scene.instances[0].is_idle = False
        scene.add("a", batch_size=3)
        scene.add("b", batch_size=2)
        scene.add("c", batch_size=2)
        scene.add("d", batch_size=4)
        await turn()
        for _ in range(3):
            scene.free()
        assert scene.batches() == ["a", "bc", "d"]
        assert scene.owner.reasons == [BatchReason.FULL] * 3

    play(scenario)


def test_only_equal_shapes_share_a_batch():
    async def scenario():
        scene = Scene(shape_key=lambda request: request.id.isupper())
        scene.instances[0].is_idle = False
        scene.add(*"abCDe")
        await turn()
        for _ in range(3):
            scene.free()
        assert scene.batches() == ["ab", "CD", "e"]

    play(scenario)


def test_a_delay_is_kept_to_a_millisecond():
    async def scenario():
        scene = Scene(max_queue_delay_us=20_000, preferred_batch_sizes=frozenset({8}))
        began_s = time.monotonic()
        scene.add("a")
        await turn()
        scene.add("b")
        await turn()
        assert scene.batches() == []
        await scene.owner.until(lambda: scene.owner.reasons)
        assert scene.batches() == ["ab"]
        assert scene.owner.reasons == [BatchReason.DELAY]
        assert time.monotonic() - began_s >= 0.02

    play(scenario)


def test_requests_beyond_the_largest_preferred_size_wait_for_their_own_delay():
    async def scenario():
        scene = Scene(max_queue_delay_us=60_000_000, preferred_batch_sizes=frozenset({2, 6}))
        scene.add("a", batch_size=3)
        await turn()
        assert scene.batches() == []
        (late,) = scene.add("b", batch_size=4)
        await turn()
        assert scene.batches() == ["a"]
        assert scene.owner.reasons == [BatchReason.FULL]
        scene.free()
        assert scene.batches() == ["a"]
        late.request.queued_ns -= 60_000_000_000
        scene.free()
        assert scene.batches() == ["a", "b"]
        assert scene.owner.reasons[1:] == [BatchReason.DELAY]
        scene.add("c", batch_size=7)  # larger than the largest preferred size by itself
        scene.free()
        assert scene.batches()[2:] == ["c"]

    play(scenario)


def test_a_batch_that_fills_does_not_wait_for_its_delay():
    async def scenario():
        scene = Scene(max_queue_delay_us=60_000_000, preferred_batch_sizes=frozenset({8}))
        scene.add(*"abcdefg")
        await turn()
        assert scene.batches() == []
        scene.add("h")
        await turn()
        assert scene.batches() == ["abcdefgh"]
        assert scene.owner.reasons == [BatchReason.FULL]

    play(scenario)


def test_only_full_batches_are_sent_ahead():
    async def scenario():
        scene = Scene(max_batch_size=2)
        scene.instances[0].prefetch_capacity = 5
        scene.add(*"abc")
        await turn()
        assert scene.batches() == ["ab"]
        scene.add("d")
        await turn()
        assert scene.batches() == ["ab", "cd"]

    play(scenario)


def test_priorities():
    async def scenario():
        scene = Scene(max_batch_size=2, priority_levels=3, default_priority=2)
        scene.instances[0].is_idle = False
        for name, priority in zip("abcdef", (3, 0, 1, 2, 1, 9), strict=True):
            scene.add(name, priority=priority)
        await turn()
        for _ in range(3):
            scene.free()
        assert scene.batches() == ["ce", "bd", "fa"]

    play(scenario)


def test_many_priorities_are_served_in_order():
    """Each level is made for its first request."""

    async def scenario():
        scene = Scene(max_batch_size=1, priority_levels=2**40, default_priority=2**39)
        scene.instances[0].is_idle = False
        for name, priority in zip("abcdefg", (2**40, 0, 1, 2**39 + 1, 7, 1, 2**41), strict=True):
            scene.add(name, priority=priority)
        await turn()
        for _ in range(7):
            scene.free()
        assert scene.batches() == ["c", "f", "e", "b", "g", "d", "a"]

    play(scenario)


def test_a_full_queue_refuses():
    async def scenario():
        scene = Scene(default_policy=QueuePolicy(max_queue_size=2))
        scene.instances[0].is_idle = False
        scene.add(*"ab")
        with pytest.raises(InferenceError, match=r"^\[request id: c\] Exceeds maximum queue size") as refused:
            scene.add("c")
        assert refused.value.code is ErrorCode.UNAVAILABLE
        scene.free()
        scene.add("c")
        assert len(scene.batcher) == 1

    play(scenario)


def test_requests_expire_while_every_instance_is_busy():
    async def scenario():
        scene = Scene(default_policy=QueuePolicy(timeout_us=20_000, allows_override=True))
        scene.instances[0].is_idle = False
        began_s = time.monotonic()
        (slow,) = scene.add("a", timeout_us=60_000_000)  # a longer time than the default is not granted
        (quick,) = scene.add("b", timeout_us=1000)
        await turn()
        await scene.owner.until(lambda: len(scene.owner.refused) == 2)
        assert time.monotonic() - began_s >= 0.02
        assert [pending for pending, _ in scene.owner.refused] == [quick, slow]
        error = scene.owner.refused[0][1]
        assert (error.message, error.code) == ("[request id: b] Request timeout expired", ErrorCode.UNAVAILABLE)
        assert len(scene.batcher) == 0

    play(scenario)


def test_a_time_of_the_clients_own_counts_only_where_it_may():
    async def scenario():
        for policy in (QueuePolicy(timeout_us=0, allows_override=True), QueuePolicy(timeout_us=10**9)):
            scene = Scene(default_policy=policy)
            scene.instances[0].is_idle = False
            scene.add("a", timeout_us=1)
            await turn()
            scene.batcher.dispatch()
            assert scene.owner.refused == []
            assert len(scene.batcher) == 1

    play(scenario)


def test_those_who_are_late_let_others_pass():
    async def scenario():
        scene = Scene(max_batch_size=2, default_policy=QueuePolicy(timeout_us=1000, delays=True, allows_override=True))
        scene.instances[0].is_idle = False
        scene.add(*"ab", queued_ns=time.monotonic_ns() - 10**9)
        scene.add("c", queued_ns=time.monotonic_ns() + 10**9)
        await turn()
        assert scene.owner.refused == []
        scene.free()
        scene.free()
        assert scene.batches() == ["ca", "b"]

    play(scenario)


def test_order_is_kept_across_instances():
    async def scenario():
        delivery = OrderedDelivery(to_sender)
        scene = Scene(instances=2, max_batch_size=1, line=DeliveryLine(delivery))
        seen = []
        for name in "abc":
            request = InferenceRequest("m", id=name)
            request.queued_ns = time.monotonic_ns()
            pending = PendingRequest(
                request, lambda response: seen.append((response.id, response.final)), RequestHolder()
            )
            scene.batcher.enqueue(pending)
        await turn()
        first, second = (instance.batches[0][0] for instance in scene.instances)
        delivery.on_response(second, InferenceResponse("m", "1", "b"))
        assert seen == []
        delivery.on_response(first, InferenceResponse("m", "1", "a", final=False))
        assert seen == [("a", False)]
        scene.free(1)
        delivery.on_response(scene.instances[1].batches[1][0], InferenceResponse("m", "1", "c"))
        assert seen == [("a", False)]
        delivery.on_response(first, InferenceResponse("m", "1", "a"))
        assert seen == [("a", False), ("a", True), ("b", True), ("c", True)]

    play(scenario)


def test_requests_that_come_back_are_the_first_of_their_level():
    async def scenario():
        scene = Scene(max_batch_size=2, priority_levels=2, default_priority=1)
        scene.instances[0].is_idle = False
        back = scene.add(*"ab")
        scene.add("c", priority=2)
        scene.add("d")
        scene.free()
        assert scene.batches() == ["ab"]
        scene.batcher.requeue(back)
        scene.free()
        scene.free()
        assert scene.batches() == ["ab", "ab", "dc"]

    play(scenario)


def test_batches_that_come_back_one_by_one_keep_their_order():
    """In whatever order: instances hand back what they were sent ahead each for itself."""

    async def scenario():
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            scene = Scene(instances=3, max_batch_size=2)
            for names in ("ab", "cd", "ef"):
                scene.add(*names)
                await turn()
            sent = [instance.batches[0] for instance in scene.instances]
            assert ["".join(pending.request.id for pending in batch) for batch in sent] == ["ab", "cd", "ef"]
            scene.add("g")
            for number in order:
                scene.batcher.requeue(sent[number])
            assert "".join(pending.request.id for pending in scene.batcher._queue) == "abcdefg"
            scene.batcher.take_all()
            scene.batcher.close()

    play(scenario)


class BatcherMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: no request is lost, none is executed twice, batches keep their bounds."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.scene = None
        self.waiting = {}
        self.names = iter(range(10**6))
        self.executed = []
        self.loop.run_until_complete(self.set_up())

    async def set_up(self):
        self.scene = Scene(
            instances=2,
            preferred_batch_sizes=frozenset({3, 6}),
            priority_levels=2,
            default_priority=2,
            policies={1: QueuePolicy(max_queue_size=4), 2: QueuePolicy(timeout_us=10**10)},
        )

    def settle(self):
        self.loop.run_until_complete(turn())
        for instance in self.scene.instances:
            for batch in instance.batches[len(getattr(instance, "seen", ())) :]:
                assert 0 < sum(pending.request.batch_size for pending in batch) <= 8
                for pending in batch:
                    del self.waiting[pending.request.id]
                    self.executed.append(pending)
            instance.seen = list(instance.batches)

    @rule(priority=st.integers(0, 3), batch_size=st.integers(1, 8))
    def add(self, priority, batch_size):
        name = str(next(self.names))

        async def enqueue():
            try:
                (self.waiting[name],) = self.scene.add(name, priority=priority, batch_size=batch_size)
            except InferenceError:
                level_1 = [pending for pending in self.waiting.values() if pending.request.priority == 1]
                assert priority == 1
                assert len(level_1) >= 4

        self.loop.run_until_complete(enqueue())
        self.settle()

    @rule(index=st.integers(0, 1))
    def free(self, index):
        async def answer():
            self.scene.free(index)

        self.loop.run_until_complete(answer())
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        self.scene.batcher.remove(self.waiting.pop(name))

    @precondition(lambda self: self.executed)
    @rule()
    def hand_back(self):
        pending = self.executed.pop()
        self.waiting[pending.request.id] = pending
        self.scene.batcher.requeue([pending])

    @invariant()
    def nothing_is_lost(self):
        assert len(self.scene.batcher) == len(self.waiting)
        assert {pending.request.id for pending in self.scene.batcher._queue} == set(self.waiting)

    def teardown(self):
        async def end():
            taken = self.scene.batcher.take_all()
            assert {pending.request.id for pending in taken} == set(self.waiting)
            self.scene.batcher.close()

        self.loop.run_until_complete(end())
        self.loop.close()


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(max_examples=40, stateful_step_count=30)
