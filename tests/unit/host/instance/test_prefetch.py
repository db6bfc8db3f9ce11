"""Prefetch: what is sent ahead, and how a stub that is slow is told from one that only waits for a core."""

import asyncio

import pytest

from pybackend.instance.execution import Execution
from pybackend.instance.prefetch import CAUTION_NS, MOST_CAUTION, MOST_PREFETCHED, PREFETCH_NS, SILENCES, Prefetch
from pybackend_wire.messages import ATTENDED_FROM, NUDGE, NUDGE_TO_ANSWER

SHORT_NS = 10_000
FOREVER_NS = 3600 * 10**9
DEADLINE_S = 60


class Stub:
    """A stub without a process: says how far it is, and notes what it is asked for."""

    def __init__(self):
        self.process = self.channel = self
        self.next_frame = 1
        self.begun = ATTENDED_FROM
        self.goes_on_after = None
        self.looks = 0
        self.asked = 0
        self.recalled = 0
        self._waiting = []

    def last_begun(self):
        self.looks += 1
        if self.goes_on_after and self.looks % self.goes_on_after == 0:
            self.begun += 1
        for count, event in self._waiting:
            if self.looks >= count:
                event.set()
        return self.begun

    def nudge(self, nudge=NUDGE):
        self.asked += nudge == NUDGE_TO_ANSWER
        self.recalled += nudge == NUDGE

    async def looked_at(self, count):
        event = asyncio.Event()
        self._waiting.append((count, event))
        await asyncio.wait_for(event.wait(), DEADLINE_S)


class Instance:
    """A prefetch with its stub, and a clock that only this test moves."""

    def __init__(self, *, others_are_idle=False):
        self.now_ns = FOREVER_NS
        self.stub = Stub()
        self.in_flight = {}
        self.others_are_idle = others_are_idle
        self.prefetch = Prefetch(self.in_flight, self, lambda: self.now_ns)
        self.prefetch.begin(1, self.stub)
        self.number = ATTENDED_FROM - 1
        self.dispatched = 0

    def on_available(self):
        self.dispatched += 1

    def has_idle_instance(self):
        return self.others_are_idle

    def send(self, count=1, *, watch=True):
        for _ in range(count):
            self.number += 1
            ahead = bool(self.in_flight)
            self.in_flight[self.number] = Execution(
                self.number, [], self.now_ns, None, None, self.stub.next_frame, ahead, unanswered=0
            )
            if ahead and watch and not self.prefetch.is_timed:
                self.prefetch.start_timer()

    def leave(self):
        """The turn is over: what was sent leaves in one frame."""
        self.stub.next_frame += 1

    def answer(self, took_ns=SHORT_NS):
        execution = self.in_flight.pop(next(iter(self.in_flight)))
        self.prefetch.on_answer(execution, self.now_ns, took_ns)

    def serve_alone(self, count=1, took_ns=SHORT_NS):
        for _ in range(count):
            self.send()
            self.leave()
            self.answer(took_ns)

    async def end_of_watch(self):
        async with asyncio.timeout(DEADLINE_S):
            while self.prefetch.is_timed:  # noqa: ASYNC110  it ends with a timer of its own
                await asyncio.sleep(0.001)

    def call(self, *, count=1):
        """The oldest execution calls others, which answer."""
        number = next(iter(self.in_flight))
        for _ in range(count):
            self.prefetch.on_call(number)
            self.prefetch.on_reply(number)

    def serve_calls(self, count=1, ending_ns=SHORT_NS):
        self.send()
        self.leave()
        self.call(count=count)
        self.now_ns += ending_ns
        self.answer(took_ns=2 * ending_ns)

    def serve_ahead(self):
        self.send(2, watch=False)
        self.leave()
        self.answer()
        self.answer()


def run(check, **options):
    async def go():
        await check(Instance(**options))

    asyncio.run(go())


# Room


def test_nothing_is_sent_ahead_before_an_execution_was_measured():
    async def check(instance):
        assert instance.prefetch.capacity() == 0
        instance.serve_alone()
        assert instance.prefetch.capacity() == MOST_PREFETCHED

    run(check)


@pytest.mark.parametrize("took_ns", [100_000, 250_000, 900_000])
def test_as_much_is_sent_ahead_as_fits_into_a_millisecond(took_ns):
    async def check(instance):
        instance.serve_alone(took_ns=took_ns)
        assert instance.prefetch.capacity() == PREFETCH_NS // took_ns

    run(check)


def test_one_is_sent_ahead_with_the_answer_to_the_last_call():
    async def check(instance):
        instance.serve_calls(count=2)
        instance.send()
        instance.leave()
        assert instance.prefetch.capacity() == 0
        instance.call()
        assert (instance.prefetch.capacity(), instance.dispatched) == (0, 0)
        instance.call()
        assert (instance.prefetch.capacity(), instance.dispatched) == (1, 1)
        instance.send()
        assert instance.prefetch.capacity() == 0
        instance.answer()
        assert instance.prefetch.capacity() == 0  # it has not called yet
        instance.call(count=2)
        assert (instance.prefetch.capacity(), instance.dispatched) == (1, 2)

    run(check)


def test_nothing_is_sent_ahead_while_a_call_is_open_or_after_more_calls_than_usual():
    async def check(instance):
        instance.serve_calls()
        instance.send()
        instance.leave()
        number = instance.number
        instance.prefetch.on_call(number)
        instance.prefetch.on_call(number)
        instance.prefetch.on_reply(number)
        instance.prefetch.on_reply(number)
        assert (instance.prefetch.capacity(), instance.dispatched) == (0, 0)

    run(check)


def test_nothing_is_sent_ahead_to_a_model_that_lasts_after_its_calls():
    async def check(instance):
        instance.serve_calls(ending_ns=5_000_000)
        instance.send()
        instance.leave()
        instance.call()
        assert (instance.prefetch.capacity(), instance.dispatched) == (0, 0)

    run(check)


def test_a_model_that_does_not_call_any_more_gets_work_ahead_as_others():
    async def check(instance):
        instance.serve_calls()
        instance.serve_alone()
        assert instance.prefetch.capacity() > 1

    run(check)


def test_nothing_is_sent_ahead_to_a_model_that_lasts():
    async def check(instance):
        instance.serve_alone(took_ns=5_000_000)
        assert instance.prefetch.capacity() == 0

    run(check)


def test_a_single_long_execution_says_little_about_a_short_model():
    """The stub may have waited for a core."""

    async def check(instance):
        instance.serve_alone(10)
        instance.serve_alone(took_ns=1000 * SHORT_NS)
        assert instance.prefetch.capacity() == MOST_PREFETCHED

    run(check)


def test_a_model_that_has_become_slow_is_known_as_slow_soon():
    async def check(instance):
        instance.serve_alone(10)
        instance.serve_alone(40, took_ns=5_000_000)
        assert instance.prefetch.capacity() == 0

    run(check)


def test_at_most_two_frames_are_under_way():
    async def check(instance):
        instance.serve_alone()
        instance.send()
        assert instance.prefetch.capacity() > 0, "the first frame has not left yet"
        instance.leave()
        assert instance.prefetch.capacity() > 0
        instance.send(2)
        assert instance.prefetch.capacity() > 0, "the second frame has not left yet"
        instance.leave()
        assert instance.prefetch.capacity() == 0
        instance.answer()
        assert instance.prefetch.capacity() > 0

    run(check)


def test_nothing_is_sent_behind_an_execution_that_has_run_for_long():
    async def check(instance):
        instance.serve_alone()
        instance.send()
        instance.leave()
        instance.now_ns += 4_000_000
        assert instance.prefetch.capacity() > 0
        instance.now_ns += 2_000_000
        assert instance.prefetch.capacity() == 0

    run(check)


# Caution after work was handed back


def hand_back(instance):
    """A short execution runs; what waits behind it comes back. Then the first is answered."""
    instance.send(2, watch=False)
    instance.leave()
    del instance.in_flight[instance.number]
    instance.prefetch.on_handed_back()
    assert instance.prefetch.capacity() == 0
    instance.answer()


def silence_ns(instance):
    """For how long nothing is sent ahead from now on."""
    instance.send()
    instance.leave()
    began_ns = instance.now_ns
    while not instance.prefetch.capacity():
        instance.now_ns += CAUTION_NS // 4
        instance.in_flight[instance.number].sent_ns = instance.now_ns
    instance.answer()
    return instance.now_ns - began_ns


def test_work_that_was_handed_back_once_costs_a_millisecond():
    async def check(instance):
        instance.serve_alone()
        hand_back(instance)
        assert silence_ns(instance) == CAUTION_NS

    run(check)


def test_a_model_that_always_hands_work_back_soon_gets_nothing_ahead():
    async def check(instance):
        instance.serve_alone()
        silences = []
        for _ in range(MOST_CAUTION + 3):
            hand_back(instance)
            silences.append(silence_ns(instance))
        assert silences == [CAUTION_NS << min(times, MOST_CAUTION) for times in range(MOST_CAUTION + 3)]

    run(check)


def test_successes_are_forgiving():
    async def check(instance):
        instance.serve_alone()
        for _ in range(5):
            hand_back(instance)
        instance.now_ns += FOREVER_NS
        for _ in range(5):
            instance.serve_ahead()
        hand_back(instance)
        assert silence_ns(instance) == CAUTION_NS

    run(check)


# Silence


def test_a_stub_that_goes_on_is_left_alone():
    """It begins one execution after the other and keeps the answers; the host hears nothing meanwhile."""

    async def check(instance):
        instance.stub.goes_on_after = SILENCES - 1
        instance.send(3)
        await instance.stub.looked_at(10 * SILENCES)
        assert instance.stub.recalled == 0

    run(check)


def test_work_behind_a_silent_execution_is_had_back_once():
    async def check(instance):
        instance.send(3)
        await instance.stub.looked_at(SILENCES + 1)
        assert instance.stub.recalled == 1
        assert instance.stub.asked == 0, "the first execution runs: there is nothing to answer"
        assert not instance.prefetch.is_timed

    run(check)


def test_answers_before_a_silent_execution_are_asked_for_first():
    async def check(instance):
        instance.stub.begun += 1
        instance.send(3)
        await instance.stub.looked_at(2)
        assert (instance.stub.asked, instance.stub.recalled) == (1, 0)
        await instance.stub.looked_at(SILENCES + 1)
        assert (instance.stub.asked, instance.stub.recalled) == (1, 1)

    run(check)


def test_an_idle_instance_is_given_the_work_at_once():
    async def check(instance):
        instance.send(3)
        await instance.stub.looked_at(2)
        assert instance.stub.recalled == 1

    run(check, others_are_idle=True)


def test_an_answer_is_progress():
    async def check(instance):
        instance.send(4)
        await instance.stub.looked_at(2)
        instance.answer()
        looks = instance.stub.looks
        await instance.stub.looked_at(looks + SILENCES - 1)
        assert instance.stub.recalled == 0
        await instance.stub.looked_at(looks + SILENCES + 1)
        assert instance.stub.recalled == 1

    run(check)


def test_the_watch_ends_with_the_work_and_begins_again():
    async def check(instance):
        instance.send(2)
        assert instance.prefetch.is_timed
        instance.answer()
        await instance.end_of_watch()
        assert not instance.prefetch.is_timed
        instance.send(2)
        assert instance.prefetch.is_timed

    run(check)


def test_a_watch_does_not_outlive_its_stub():
    async def check(instance):
        instance.send(3)
        successor = Stub()
        instance.prefetch.begin(1, successor)
        await instance.end_of_watch()
        assert (instance.stub.recalled, successor.recalled, successor.looks) == (0, 0, 0)

    run(check)
