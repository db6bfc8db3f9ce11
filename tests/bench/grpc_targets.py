"""The figures that pybackend sets itself for gRPC; see ``targets``, which judges the others."""

from __future__ import annotations

from collections.abc import Callable

from tests.bench import grpc_workloads, servers
from tests.bench.goals import Goal
from tests.bench.loadgen import LoadResult
from tests.bench.results import Results

BINARY = "add_sub binary"
CPU_VERSUS_REFERENCE = 0.25
THROUGHPUT_VERSUS_REFERENCE = 4.0
LATENCY_VERSUS_REFERENCE = 0.65
VERSUS_HTTP = 1.0
BYTES_PER_SECOND_VERSUS_REFERENCE = 2.0
STREAM_VERSUS_REFERENCE = 3.0
IDLE_STREAM_BYTES = 30 * 1024


def goals(results: Results) -> list[Goal]:
    """All targets of gRPC that are ratios; without samples they have none."""
    busy = results.plan.busy_connections
    several = busy // grpc_workloads.STREAMS_PER_CONNECTION
    small, many = grpc_workloads.ADD_SUB, grpc_workloads.ADD_SUB_STREAMS
    found = []
    for workload, connections in ((small, busy), (many, several)):
        name = f"{workload}, {connections} connections"
        found += [
            Goal(
                f"{name}: CPU of host + stub against the reference's",
                _versus_reference(results, workload, connections, _cpu_us),
                CPU_VERSUS_REFERENCE,
                at_least=False,
            ),
            Goal(
                f"{name}: infer/s against the reference's",
                _versus_reference(results, workload, connections, _rate),
                THROUGHPUT_VERSUS_REFERENCE,
                at_least=True,
            ),
        ]
    found += [
        Goal(
            f"{small}, {busy} connections: infer/s against HTTP's",
            _ratios(_windows(results, small, busy), _windows(results, BINARY, busy), _rate),
            VERSUS_HTTP,
            at_least=True,
        ),
        Goal(
            f"{many}, {several} connections: infer/s against {busy} connections'",
            _ratios(_windows(results, many, several), _windows(results, small, busy), _rate),
            VERSUS_HTTP,
            at_least=True,
        ),
        Goal(
            f"{small}, 1 connection: p50 against the reference's",
            _versus_reference(results, small, 1, lambda r: r.p50_us),
            LATENCY_VERSUS_REFERENCE,
            at_least=False,
        ),
        *(
            Goal(
                f"{grpc_workloads.identity_name(size)}: GB/s against the reference's",
                _versus_reference(results, grpc_workloads.identity_name(size), 1, lambda r: 1 / r.p50_us),
                BYTES_PER_SECOND_VERSUS_REFERENCE,
                at_least=True,
            )
            for size in results.plan.tensor_bytes
        ),
        Goal(
            f"{grpc_workloads.STREAM}: responses per second against the reference's",
            _versus_reference(results, grpc_workloads.STREAM, 1, lambda r: 1 / r.p50_us),
            STREAM_VERSUS_REFERENCE,
            at_least=True,
        ),
    ]
    return found


def _windows(results: Results, workload: str, connections: int) -> dict[int, LoadResult]:
    return results.grpc_loads(servers.PYBACKEND, workload, connections)


def _versus_reference(
    results: Results, workload: str, connections: int, value: Callable[[LoadResult], float]
) -> list[float]:
    others = results.grpc_loads(servers.REFERENCE, workload, connections)
    return _ratios(_windows(results, workload, connections), others, value)


def _ratios(
    own: dict[int, LoadResult], others: dict[int, LoadResult], value: Callable[[LoadResult], float]
) -> list[float]:
    return [value(own[round_]) / value(others[round_]) for round_ in own if round_ in others]


def _cpu_us(result: LoadResult) -> float:
    return result.host_cpu_us + result.stub_cpu_us


def _rate(result: LoadResult) -> float:
    return result.infer_per_s
