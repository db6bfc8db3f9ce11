"""Quantiles of recent values."""

import math
import random

import pytest

from pybackend.model.latencies import QuantileWindow, RecentTimes

S = 1_000_000_000
SHARES = (0.0, 0.5, 0.9, 0.99, 1.0)


def test_nothing_gives_nan():
    assert all(math.isnan(value) for value in QuantileWindow().quantiles_ns(SHARES, 5 * S))


@pytest.mark.parametrize("scale", [1, 1_000, 1_000_000_000])
def test_quantiles_are_exact_to_a_64th(scale):
    random.seed(scale)
    values = sorted(int(random.lognormvariate(3, 1.5) * scale) for _ in range(5_000))
    window = QuantileWindow()
    for value in values:
        window.add(value, 0)
    for share, found in zip(SHARES, window.quantiles_ns(SHARES, 0), strict=True):
        exact = values[max(0, math.ceil(share * len(values)) - 1)]
        assert abs(found - exact) <= exact / 64 + 0.5, share


def test_old_values_leave_the_window():
    window = QuantileWindow()
    for _ in range(100):
        window.add(1_000, 0)
    window.add(9_000, 55 * S)
    (median,) = window.quantiles_ns((0.5,), 55 * S)
    assert median == pytest.approx(1_000, rel=1 / 64)
    (median,) = window.quantiles_ns((0.5,), 61 * S)
    assert median == pytest.approx(9_000, rel=1 / 64)
    assert math.isnan(next(window.quantiles_ns((0.5,), 200 * S)))


def test_the_last_executions_have_quantiles_from_the_first_on():
    recent = RecentTimes()
    assert recent.quantiles_s(0) == ()
    recent.add(3_000)
    assert recent.quantiles_s(1) == (("0.5", 3e-6), ("0.99", 3e-6))
    for number in range(1, 10_001):
        recent.add(number * 1_000)
    assert recent.quantiles_s(10_001) == (("0.5", 9_744e-6), ("0.99", 9_995e-6))
