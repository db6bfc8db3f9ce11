"""Which rungs of the ladder a machine climbs, and what follows from what was measured there."""

from dataclasses import replace

from tests.bench.front_ends import Rung, limits, rungs
from tests.bench.test_targets import WINDOW


def test_two_cores_measure_what_a_request_costs() -> None:
    assert list(rungs(2)) == [Rung(0, 1), Rung(1, 1), Rung(2, 1)]


def test_many_cores_climb_all_rungs() -> None:
    assert len(list(rungs(18))) == 20
    assert Rung(8, 8) not in list(rungs(16))


def test_the_busiest_process_is_the_limit() -> None:
    windows = [replace(WINDOW, host_cpu_us=10, front_end_cpu_us=20, stub_cpu_us=40)]
    assert limits(windows, Rung(1, 8), 64).least == limits(windows, Rung(1, 8), 64).accepting == 50_000
    assert limits(windows, Rung(8, 8), 64).least == limits(windows, Rung(8, 8), 64).scheduling == 100_000
    assert limits(windows, Rung(8, 1), 64).least == limits(windows, Rung(8, 1), 64).executing == 25_000
    assert limits(windows, Rung(8, 8), 1).least == 1e6 / 70
