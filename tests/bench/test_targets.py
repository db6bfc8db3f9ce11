"""The verdicts: ratios are formed round by round, and only for what was measured."""

import dataclasses

from tests.bench import report, servers, startup, targets
from tests.bench.footprint import FootprintSample
from tests.bench.ladder import LoadSample
from tests.bench.loadgen import LoadResult
from tests.bench.plan import FULL, MB
from tests.bench.procstat import Memory
from tests.bench.results import Results
from tests.bench.startup import StartSample

WINDOW = LoadResult(
    connections=32,
    replies=1000,
    errors=0,
    first_error="",
    seconds=2.0,
    infer_per_s=500.0,
    p50_us=100.0,
    p90_us=150.0,
    p99_us=200.0,
    max_us=300.0,
    reply_bytes=260,
    bytes_sent=1,
    bytes_received=1,
    host_cpu_us=20.0,
    stub_cpu_us=10.0,
    client_cpu_us=10.0,
    foreign_cores=0.0,
    steal_cores=0.0,
)


def results(**samples: list) -> Results:  # type: ignore[type-arg]
    return Results(FULL, {"cpu": "any"}, **samples)


def window(server: str, round_: int, **values: float) -> LoadSample:
    result = dataclasses.replace(WINDOW, **values)  # type: ignore[arg-type]
    return LoadSample(server, targets.BINARY, 32, round_, result)


def test_a_drifting_machine_does_not_change_the_ratio() -> None:
    # The second round ran on a machine that was three times slower, for both.
    ladder = [
        window(servers.PYBACKEND, 0, host_cpu_us=20.0, stub_cpu_us=10.0, infer_per_s=900.0),
        window(servers.REFERENCE, 0, host_cpu_us=70.0, stub_cpu_us=30.0, infer_per_s=300.0),
        window(servers.PYBACKEND, 1, host_cpu_us=60.0, stub_cpu_us=30.0, infer_per_s=300.0),
        window(servers.REFERENCE, 1, host_cpu_us=210.0, stub_cpu_us=90.0, infer_per_s=100.0),
    ]
    verdicts = targets.judge(results(ladder=ladder))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [
        ("0.30x (0.30 to 0.30)", True),
        ("3.00x (3.00 to 3.00)", True),
    ]


def test_what_was_not_measured_is_not_judged() -> None:
    assert targets.judge(results(ladder=[window(servers.PYBACKEND, 0)])) == []


def test_a_missed_target_is_called_missed() -> None:
    ladder = [window(servers.PYBACKEND, 0, host_cpu_us=50.0), window(servers.ECHO, 0, host_cpu_us=25.0)]
    text = report.render(results(ladder=ladder))
    assert "| <= 1.2x | 2.00x | MISSED |" in text


def test_start_up_is_judged_over_the_import_and_over_one_model_less() -> None:
    starts = [
        StartSample(startup.WEB_STACK, 0, 0, 0.5, 0.0),
        StartSample(servers.PYBACKEND, 1, 0, 0.7, 0.0),
        StartSample(servers.PYBACKEND, 2, 0, 1.0, 0.0),
    ]
    verdicts = targets.judge(results(starts=starts))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("0.20 s", True), ("0.30 s", False)]


def test_one_more_stub_is_what_all_processes_grow_by() -> None:
    footprints = [
        FootprintSample(servers.PYBACKEND, 1, Memory(0, 0), 3, 1, Memory(0, 0), 1, 40 * MB, 0.5),
        FootprintSample(servers.PYBACKEND, 10, Memory(0, 0), 4, 10, Memory(0, 0), 1, 130 * MB, 1.0),
    ]
    verdicts = targets.judge(results(footprints=footprints))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("10.0 MB", True), ("4 against 3", False)]
