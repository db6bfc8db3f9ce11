"""The default scheduler's queue: requests may leave it from any place, however long it is."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from pybackend.scheduler.default import DefaultScheduler


class Instance:
    """Notes what it executes; ``prefetch_capacity`` is how much it takes while it is busy."""

    def __init__(self):
        self.is_idle = False
        self.prefetch_capacity = 0
        self.executed = []

    def execute(self, batch):
        self.executed += batch
        self.prefetch_capacity -= 1


class Waiting(SimpleNamespace):
    """A request as the scheduler sees it, which counts how often it is compared."""

    compared = 0

    def __eq__(self, other):
        Waiting.compared += 1
        return self is other

    __hash__ = object.__hash__


def requests(count):
    return [Waiting(request=SimpleNamespace(arrived_ns=number), queued_ns=number) for number in range(count)]


@pytest.fixture
def run():
    def run(scenario):
        async def main():
            instance = Instance()
            scenario(DefaultScheduler([instance]), instance)

        asyncio.run(main())

    return run


@pytest.mark.parametrize("seed", range(5))
def test_who_leaves_is_not_executed_and_the_others_keep_their_order(run, seed):
    chance = random.Random(seed)

    def scenario(scheduler, instance):
        waiting, expected, left = requests(200), [], []
        for each in waiting:
            scheduler.enqueue(each)
            left.append(each)
            if left and chance.random() < 0.4:
                gone = left.pop(chance.randrange(len(left)))
                scheduler.remove(gone)
            if chance.random() < 0.3:
                instance.prefetch_capacity = 2
                scheduler.dispatch()
                expected += left[:2]
                del left[:2]
            assert len(scheduler) == len(left)
            assert instance.executed == expected
        assert scheduler.take_all() == left
        assert len(scheduler) == 0

    run(scenario)


def test_leaving_takes_no_search(run):
    """A client that leaves with a hundred thousand requests must not hold the loop."""

    def scenario(scheduler, _instance):
        waiting = requests(2000)
        for each in waiting:
            scheduler.enqueue(each)
        Waiting.compared = 0
        for each in reversed(waiting):
            scheduler.remove(each)
        assert len(scheduler) == 0
        assert Waiting.compared < 5 * len(waiting)

    run(scenario)
