"""Queues are filled and emptied as often as the plan says, and nothing gets lost on the way."""

import dataclasses

from tests.bench import queue_cost
from tests.bench.plan import FULL


def test_every_length_gets_its_rounds_and_every_other_round_goes_the_other_way() -> None:
    plan = dataclasses.replace(FULL, queue_lengths=(10, 200), queue_rounds=2)
    samples = queue_cost.measure(plan)
    order = [(sample.round, sample.waiting, sample.requests) for sample in samples]
    assert order == [(0, 10, 200), (0, 200, 200), (1, 200, 200), (1, 10, 200)]
    assert all(sample.cpu_us > 0 for sample in samples)
