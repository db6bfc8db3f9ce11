"""The verdicts: ratios are formed round by round, and only for what was measured."""

import dataclasses

import pytest

from tests.bench import bodies, grpc_workloads, packing, report, servers, startup, targets
from tests.bench.call_memory import CallMemorySample
from tests.bench.footprint import FootprintSample
from tests.bench.grpc_load import IdleSample
from tests.bench.instances import InstanceSample
from tests.bench.loadgen import LoadResult
from tests.bench.packing import EnvironmentLoadSample, PackSample
from tests.bench.plan import FULL, MB
from tests.bench.procstat import Memory, PeakMemory
from tests.bench.queue_cost import QueueSample
from tests.bench.results import Results
from tests.bench.startup import StartSample
from tests.bench.turns import LoadSample

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
    front_end_cpu_us=0.0,
    client_cpu_us=10.0,
    foreign_cores=0.0,
    steal_cores=0.0,
)


def results(**samples: list) -> Results:  # type: ignore[type-arg]
    return Results(FULL, {"cpu": "any"}, **samples)


def window(server: str, round_: int, **values: float) -> LoadSample:
    result = dataclasses.replace(WINDOW, **values)  # type: ignore[arg-type]
    return LoadSample(server, targets.BINARY, 32, round_, result)


def one_client(server: str, workload: str, round_: int, **values: float) -> LoadSample:
    result = dataclasses.replace(WINDOW, connections=1, **values)  # type: ignore[arg-type]
    return LoadSample(server, workload, 1, round_, result)


def call_memory(server: str, requests: int, calls: int, peak_bytes: int) -> CallMemorySample:
    memory = Memory(0, 100 * MB)
    return CallMemorySample(server, requests, calls, 40 * MB, memory, PeakMemory(peak_bytes, 0), memory, 0, 50.0, 0.0)


def test_a_drifting_machine_does_not_change_the_ratio() -> None:
    # The second round ran on a machine that was three times slower, for both.
    ladder = [
        window(servers.PYBACKEND, 0, host_cpu_us=14.0, stub_cpu_us=6.0, infer_per_s=1200.0),
        window(servers.REFERENCE, 0, host_cpu_us=70.0, stub_cpu_us=30.0, infer_per_s=300.0),
        window(servers.PYBACKEND, 1, host_cpu_us=42.0, stub_cpu_us=18.0, infer_per_s=400.0),
        window(servers.REFERENCE, 1, host_cpu_us=210.0, stub_cpu_us=90.0, infer_per_s=100.0),
    ]
    verdicts = targets.judge(results(ladder=ladder))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [
        ("0.20x (0.20 to 0.20)", True),
        ("4.00x (4.00 to 4.00)", True),
    ]


def test_more_connections_are_compared_with_those_of_the_same_round() -> None:
    ladder = [
        window(servers.PYBACKEND, 0, host_cpu_us=20.0, stub_cpu_us=10.0),
        dataclasses.replace(window(servers.PYBACKEND, 0, host_cpu_us=23.0, stub_cpu_us=10.0), connections=1000),
    ]
    (verdict,) = targets.judge(results(ladder=ladder))
    assert verdict.name == "add_sub binary, 1,000 connections: CPU of host + stub against that at 32"
    assert (verdict.measured, verdict.met) == ("1.10x", True)


def test_what_was_not_measured_is_not_judged() -> None:
    assert targets.judge(results(ladder=[window(servers.PYBACKEND, 0)])) == []


def test_a_missed_target_is_called_missed() -> None:
    ladder = [window(servers.PYBACKEND, 0, host_cpu_us=50.0), window(servers.ECHO, 0, host_cpu_us=25.0)]
    text = report.render(results(ladder=ladder))
    assert "| <= 1.2x | 2.00x | MISSED |" in text


def test_what_a_call_adds_is_judged_without_what_add_sub_costs_anyhow() -> None:
    calls = [
        one_client(servers.PYBACKEND, bodies.DIRECT, 0, p50_us=200.0, host_cpu_us=100.0, stub_cpu_us=100.0),
        one_client(servers.PYBACKEND, bodies.ONE_CALL, 0, p50_us=300.0, host_cpu_us=200.0, stub_cpu_us=200.0),
        one_client(servers.REFERENCE, bodies.DIRECT, 0, p50_us=250.0, host_cpu_us=150.0, stub_cpu_us=100.0),
        one_client(servers.REFERENCE, bodies.ONE_CALL, 0, p50_us=500.0, host_cpu_us=300.0, stub_cpu_us=200.0),
    ]
    measured = results(calls=calls)
    verdicts = targets.judge(measured)
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("0.40x", True), ("0.80x", False)]
    assert "| add_sub by a BLS call | pybackend | 300 | 200 | 200.0 | 200.0 | 400.0 | 100 | 200.0 |" in report.render(
        measured
    )


def test_a_round_in_which_noise_ate_the_reference_s_call_has_no_ratio() -> None:
    calls = [
        one_client(server, workload, 0, p50_us=p50_us)
        for server in (servers.PYBACKEND, servers.REFERENCE)
        for workload, p50_us in ((bodies.DIRECT, 200.0), (bodies.ONE_CALL, 190.0))
    ]
    assert targets.judge(results(calls=calls)) == []


@pytest.mark.parametrize(("own_us", "verdict"), [(150.0, True), (250.0, False)])
def test_strings_are_judged_by_the_client_s_time(own_us: float, verdict: bool) -> None:
    strings = [
        one_client(servers.PYBACKEND, bodies.STRINGS, 0, p50_us=own_us),
        one_client(servers.REFERENCE, bodies.STRINGS, 0, p50_us=1000.0),
    ]
    assert [each.met for each in targets.judge(results(strings=strings))] == [verdict]


def test_a_step_is_judged_without_the_one_before_it() -> None:
    ensemble = [
        one_client(servers.PYBACKEND, bodies.ONE_STEP, 0, p50_us=200.0, host_cpu_us=90.0),
        one_client(servers.PYBACKEND, bodies.TWO_STEPS, 0, p50_us=300.0, host_cpu_us=190.0),
        one_client(servers.REFERENCE, bodies.ONE_STEP, 0, p50_us=250.0, host_cpu_us=100.0),
        one_client(servers.REFERENCE, bodies.TWO_STEPS, 0, p50_us=450.0, host_cpu_us=200.0),
    ]
    # add_sub of the calls' section is another moment's: it must not be taken off.
    calls = [one_client(servers.PYBACKEND, bodies.DIRECT, 0, p50_us=290.0)]
    measured = results(ensemble=ensemble, calls=calls)
    verdicts = targets.judge(measured)
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("0.50x", True), ("1.00x", False)]
    assert "| ensemble: add_sub, multiply | pybackend | 300 | 200 | 190.0 | 10.0 | 200.0 | 100 | 100.0 |" in (
        report.render(measured)
    )


def test_a_chain_of_steps_is_judged_as_a_whole() -> None:
    name = bodies.chain_name(FULL.chain_bytes)
    chain = [
        one_client(servers.PYBACKEND, name, 0, p50_us=900.0, host_cpu_us=70.0),
        one_client(servers.REFERENCE, name, 0, p50_us=1000.0, host_cpu_us=30.0),
    ]
    assert [verdict.met for verdict in targets.judge(results(chain=chain))] == [True, False]


def test_batches_are_judged_by_throughput_and_cpu() -> None:
    batched = [
        LoadSample(server, bodies.BATCHED, 64, 0, dataclasses.replace(WINDOW, connections=64, infer_per_s=per_s))
        for server, per_s in ((servers.PYBACKEND, 1500.0), (servers.REFERENCE, 500.0))
    ]
    measured = results(batched=batched)
    verdicts = targets.judge(measured)
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("3.00x", True), ("1.00x", False)]
    assert "### Batches" in report.render(measured)


def test_a_long_queue_is_judged_by_the_shortest_of_the_same_round() -> None:
    queues = [
        QueueSample(100, 0, 100_000, 2.0),
        QueueSample(10_000, 0, 100_000, 9.0),
        QueueSample(100_000, 0, 100_000, 3.0),
        QueueSample(100_000, 1, 100_000, 12.0),
        QueueSample(100, 1, 100_000, 4.0),
    ]
    measured = results(queues=queues)
    assert [verdict.measured for verdict in targets.judge(measured)] == ["2.25x (1.50 to 3.00)"]
    assert "| 10,000 | 9.00 | 9.00 to 9.00 | 1 |" in report.render(measured)


def test_a_stream_may_cost_no_more_than_the_reference_s() -> None:
    stream = [
        one_client(servers.PYBACKEND, bodies.STREAM, 0, p50_us=900.0, host_cpu_us=50.0),
        one_client(servers.REFERENCE, bodies.STREAM, 0, p50_us=1000.0, host_cpu_us=20.0),
    ]
    assert [verdict.met for verdict in targets.judge(results(stream=stream))] == [True, False]


def test_every_series_of_calls_is_judged_by_the_peak_of_the_first() -> None:
    series = [
        call_memory(servers.REFERENCE, 1, 5, 900 * MB),
        call_memory(servers.PYBACKEND, 1, 5, 300 * MB),
        call_memory(servers.PYBACKEND, 1, 50, 301 * MB),
        call_memory(servers.PYBACKEND, 5, 10, 340 * MB),
    ]
    verdicts = targets.judge(results(call_memory=series))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("1.0 MB", True), ("40.0 MB", False)]


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
        FootprintSample(servers.PYBACKEND, 10, Memory(0, 0), 4, 10, Memory(0, 0), 1, 76 * MB, 1.0),
    ]
    verdicts = targets.judge(results(footprints=footprints))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("4.0 MB", True), ("4 against 3", False)]


def test_fifty_models_are_judged_by_when_they_are_ready_and_by_all_their_memory() -> None:
    footprints = [FootprintSample(servers.PYBACKEND, 50, Memory(0, 0), 3, 51, Memory(0, 0), 1, 251 * MB, 2.9)]
    verdicts = targets.judge(results(footprints=footprints))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("2.90 s", True), ("251 MB", False)]


def test_an_instance_more_is_judged_without_its_sandbox_and_the_sandbox_without_the_instance() -> None:
    kinds = {
        ("zygote", "off"): 0.009,
        ("zygote", "standard"): 0.012,
        ("spawn", "off"): 0.2,
        ("spawn", "standard"): 0.21,
    }
    samples = [InstanceSample(start, sandbox, 0, seconds) for (start, sandbox), seconds in kinds.items()]
    measured = results(instances=samples)
    verdicts = targets.judge(measured)
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [
        ("9.00 ms", True),
        ("200.00 ms", False),
        ("3.00 ms", True),
        ("10.00 ms", False),
    ]
    assert "| zygote | standard | 12.0 | 12.0 to 12.0 | 1 |" in report.render(measured)


def test_a_pack_is_judged_by_the_sum_of_its_parts_and_a_load_by_one_without_an_environment() -> None:
    packs = [PackSample(part, 0, 2.0) for part in packing.PARTS] + [PackSample(packing.PACK, 0, 9.2)]
    loads = [EnvironmentLoadSample(packing.PLAIN, 0, 0.1), EnvironmentLoadSample(packing.PACKED, 0, 0.25)]
    measured = results(packs=packs, environment_loads=loads)
    verdicts = targets.judge(measured)
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("1.15x", True), ("150.00 ms", False)]
    assert "| compile, alone | 2.000 | 2.000 to 2.000 | 1 |" in report.render(measured)


def test_a_sandbox_is_judged_by_the_model_beside_it() -> None:
    sandbox = [
        one_client(servers.PYBACKEND, bodies.confined_name(level), 0, host_cpu_us=host_us)
        for level, host_us in (("off", 90.0), ("standard", 94.0))
    ]
    assert [(verdict.measured, verdict.met) for verdict in targets.judge(results(sandbox=sandbox))] == [("1.04x", True)]


def grpc_window(server: str, workload: str, connections: int, round_: int = 0, **values: float) -> LoadSample:
    result = dataclasses.replace(WINDOW, connections=connections, **values)  # type: ignore[arg-type]
    return LoadSample(server, workload, connections, round_, result)


def test_grpc_under_load_is_judged_by_cpu_and_rate_against_the_reference_of_the_same_round() -> None:
    small = grpc_workloads.ADD_SUB
    grpc = [
        grpc_window(servers.PYBACKEND, small, 32, 0, host_cpu_us=20.0, stub_cpu_us=10.0, infer_per_s=900.0),
        grpc_window(servers.REFERENCE, small, 32, 0, host_cpu_us=100.0, stub_cpu_us=50.0, infer_per_s=300.0),
        grpc_window(servers.PYBACKEND, small, 32, 1, host_cpu_us=60.0, stub_cpu_us=30.0, infer_per_s=450.0),
        grpc_window(servers.REFERENCE, small, 32, 1, host_cpu_us=300.0, stub_cpu_us=150.0, infer_per_s=150.0),
        grpc_window(servers.PYBACKEND, small, 32, 2),  # the reference failed in this round
    ]
    verdicts = targets.judge(results(grpc=grpc))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [
        ("0.20x (0.20 to 0.20)", True),
        ("3.00x (3.00 to 3.00)", False),
    ]


def test_grpc_is_judged_against_http_of_the_same_round_and_several_calls_against_one() -> None:
    several = 32 // grpc_workloads.STREAMS_PER_CONNECTION
    grpc = [
        grpc_window(servers.PYBACKEND, targets.BINARY, 32, infer_per_s=500.0),
        grpc_window(servers.PYBACKEND, grpc_workloads.ADD_SUB, 32, infer_per_s=600.0),
        grpc_window(servers.PYBACKEND, grpc_workloads.ADD_SUB_STREAMS, several, infer_per_s=540.0),
    ]
    verdicts = targets.judge(results(grpc=grpc))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("1.20x", True), ("0.90x", False)]


def test_the_latency_of_grpc_is_judged_on_one_connection() -> None:
    grpc = [
        grpc_window(servers.PYBACKEND, grpc_workloads.ADD_SUB, 1, p50_us=80.0),
        grpc_window(servers.REFERENCE, grpc_workloads.ADD_SUB, 1, p50_us=100.0),
    ]
    verdicts = targets.judge(results(grpc=grpc))
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("0.80x", False)]


def test_large_tensors_and_streams_over_grpc_are_judged_by_their_speed() -> None:
    large = grpc_workloads.identity_name(FULL.tensor_bytes[0])
    measured = results(
        grpc_large=[
            grpc_window(servers.PYBACKEND, large, 1, p50_us=100.0),
            grpc_window(servers.REFERENCE, large, 1, p50_us=250.0),
        ],
        grpc_stream=[
            grpc_window(servers.PYBACKEND, grpc_workloads.STREAM, 1, p50_us=100.0),
            grpc_window(servers.REFERENCE, grpc_workloads.STREAM, 1, p50_us=250.0),
        ],
    )
    verdicts = targets.judge(measured)
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("2.50x", True), ("2.50x", False)]


def test_idle_streams_are_judged_one_by_one() -> None:
    idle = [
        IdleSample(servers.PYBACKEND, 1000, 1000 * 20 * 1024),
        IdleSample(servers.PYBACKEND, 1000, 1000 * 40 * 1024),
        IdleSample(servers.REFERENCE, 1000, 1000 * 90 * 1024),
    ]
    measured = results(grpc_idle=idle)
    verdicts = targets.judge(measured)
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [("20.0 KB", True), ("40.0 KB", False)]
    assert "| pybackend | 1000 | 20.0 |" in report.render(measured)
