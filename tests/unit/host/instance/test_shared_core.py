"""The shared core: while executions run alone, the thread of the loop and the stubs wait on one core; else on any."""

from __future__ import annotations

import asyncio
import os
import threading
from time import monotonic_ns

import pytest

from pybackend.cores import UnpinningPool, start_thread
from pybackend.instance.shared_core import ENOUGH_ALONE, SHORT_NS, SharedCore

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is always shared")

USUAL_NS = 20_000


class Stub:
    """A stub without a process: notes where it is to wait."""

    def __init__(self):
        self.core = None

    def wait_on(self, core):
        self.core = core


@pytest.fixture
def own():
    """The cores of this thread, which it has back at the end."""
    cores = os.sched_getaffinity(0)
    yield cores
    os.sched_setaffinity(0, cores)


def run(scenario):
    """Run a scenario with a shared core and a stub."""

    async def main():
        shared = SharedCore()
        try:
            scenario(shared, Stub())
        finally:
            shared.part()

    asyncio.run(main())


def begin(shared, stub, usual_ns=USUAL_NS):
    """A request comes, and is executed at once."""
    shared.begin(stub, usual_ns, monotonic_ns())


def end(shared, count=1):
    shared.end(monotonic_ns(), count)


def alone(shared, stub, count=ENOUGH_ALONE, usual_ns=USUAL_NS):
    for _ in range(count):
        begin(shared, stub, usual_ns)
        end(shared)


def test_executions_that_run_alone_share_a_core_until_one_does_not(own):
    def scenario(shared, stub):
        alone(shared, stub, ENOUGH_ALONE - 1)
        assert shared.core is None
        assert os.sched_getaffinity(0) == own
        alone(shared, stub, 2)
        assert os.sched_getaffinity(0) == {shared.core}
        assert stub.core == shared.core
        begin(shared, stub)
        begin(shared, stub)
        assert shared.core is None
        assert stub.core is None
        assert os.sched_getaffinity(0) == own
        end(shared, 2)
        alone(shared, stub, ENOUGH_ALONE - 1)
        assert shared.core is None, "the count begins anew"

    run(scenario)


def test_requests_that_wait_for_others_are_not_alone(own):
    def scenario(shared, stub):
        def one_behind_the_other():
            arrived_ns = monotonic_ns()  # while the one before is executed
            end(shared)
            shared.begin(stub, USUAL_NS, arrived_ns)

        begin(shared, stub)
        for _ in range(2 * ENOUGH_ALONE):
            one_behind_the_other()
            assert os.sched_getaffinity(0) == own
        end(shared)
        alone(shared, stub)
        begin(shared, stub)
        assert os.sched_getaffinity(0) == {shared.core}
        one_behind_the_other()
        assert os.sched_getaffinity(0) == own

    run(scenario)


def test_the_requests_of_a_batch_are_not_alone(own):
    def scenario(shared, stub):
        for _ in range(2 * ENOUGH_ALONE):
            shared.begin(stub, USUAL_NS, 0)
            end(shared)
        assert os.sched_getaffinity(0) == own

    run(scenario)


@pytest.mark.parametrize("usual_ns", [0, SHORT_NS], ids=["unknown", "long"])
def test_executions_that_last_share_nothing(own, usual_ns):
    def scenario(shared, stub):
        alone(shared, stub, 2 * ENOUGH_ALONE, usual_ns)
        assert os.sched_getaffinity(0) == own
        alone(shared, stub)
        begin(shared, stub, usual_ns)
        assert os.sched_getaffinity(0) == own
        end(shared)

    run(scenario)


def test_an_execution_that_waits_for_another_one_does_not_run_beside_it(own):
    def scenario(shared, stub):
        called = Stub()
        for _ in range(ENOUGH_ALONE):
            begin(shared, stub)
            shared.wait()
            begin(shared, called)
            end(shared)
            shared.go_on()
            end(shared)
        assert len(os.sched_getaffinity(0)) == 1
        assert stub.core == called.core == shared.core

    run(scenario)


def test_threads_and_processes_that_start_may_use_all_cores(own):
    def scenario(shared, stub):
        seen = []
        alone(shared, stub)
        assert len(os.sched_getaffinity(0)) == 1
        start_thread(lambda: seen.append(os.sched_getaffinity(0)), "test").join()
        assert os.sched_getaffinity(0) == own
        shared.part()
        alone(shared, stub)
        assert len(os.sched_getaffinity(0)) == 1
        with UnpinningPool() as pool:
            seen.append(pool.submit(os.sched_getaffinity, 0).result())
        assert seen == [own, own]

    run(scenario)


def test_a_thread_that_another_one_starts_changes_nothing(own):
    def scenario(shared, stub):
        may_start, seen = threading.Event(), []

        def start():
            may_start.wait()
            start_thread(lambda: seen.append(os.sched_getaffinity(0)), "test").join()

        other = start_thread(start, "test")
        alone(shared, stub)
        may_start.set()
        other.join()
        assert seen == [own]
        assert os.sched_getaffinity(0) == {shared.core}

    run(scenario)


def test_a_stub_that_is_gone_hears_nothing(own):
    def scenario(shared, stub):
        alone(shared, stub, ENOUGH_ALONE + 1)
        core = shared.core
        shared.forget(stub)
        shared.part()
        assert stub.core == core

    run(scenario)


def test_all_cores_are_free_now_and_then(own, monkeypatch):
    monkeypatch.setattr("pybackend.instance.shared_core.RENEW_S", 0)

    async def main():
        shared = SharedCore()
        alone(shared, Stub())
        async with asyncio.timeout(60):
            while shared.core is not None:  # noqa: ASYNC110  the timer is the object's own
                await asyncio.sleep(0)
        assert os.sched_getaffinity(0) == own

    asyncio.run(main())


def test_switched_off(own):
    shared = SharedCore(enabled=False)
    alone(shared, Stub(), 2 * ENOUGH_ALONE)
    assert os.sched_getaffinity(0) == own
