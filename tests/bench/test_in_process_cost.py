"""Every kind of caller gets its answers in each round."""

import dataclasses
from pathlib import Path

from tests.bench import in_process_cost
from tests.bench.plan import FULL


def test_every_kind_of_caller_is_measured_in_each_round(tmp_path: Path) -> None:
    plan = dataclasses.replace(FULL, in_process_calls=64, rounds=2)
    samples = in_process_cost.measure(plan, tmp_path)
    kinds = [(round_, callers) for round_ in (0, 1) for callers in ("coroutines", "threads")]
    assert [(sample.round, sample.callers) for sample in samples] == kinds
    assert all(sample.cpu_us > 0 for sample in samples)
