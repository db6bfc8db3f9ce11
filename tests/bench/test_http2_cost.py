"""Both ends answer every call of the client, in every grouping."""

import dataclasses

from tests.bench import http2_cost
from tests.bench.plan import FULL


def test_every_end_answers_its_calls_in_each_round() -> None:
    plan = dataclasses.replace(FULL, http2_calls=400, http2_rounds=2)
    samples = http2_cost.measure(plan)
    kinds = [("pybackend", 1, 400), ("pybackend", 8, 400), ("h2", 1, 20), ("h2", 8, 20)]
    order = [(sample.round, (sample.library, sample.calls_per_read, sample.calls)) for sample in samples]
    assert order == [(round_, kind) for round_ in (0, 1) for kind in kinds]
    assert all(sample.cpu_us > 0 for sample in samples)
