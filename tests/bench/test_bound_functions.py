"""The function and the model file get their windows, and both answer rightly."""

import dataclasses
from pathlib import Path

import pytest

from tests.bench import bound_functions, loadgen
from tests.bench.plan import FULL


def test_function_and_file_take_turns(tmp_path: Path) -> None:
    try:
        loadgen.build()
    except loadgen.LoadError as error:
        pytest.skip(str(error))
    samples = bound_functions.measure(dataclasses.replace(FULL, duration_s=0.05, warm_up_s=0, rounds=2), tmp_path)
    names = [bound_functions.BOUND, bound_functions.FILE]
    assert [(sample.round, sample.server) for sample in samples] == [
        (0, names[0]),
        (0, names[1]),
        (1, names[1]),
        (1, names[0]),
    ]
    assert all(sample.result.host_cpu_us > 0 and not sample.result.errors for sample in samples)
