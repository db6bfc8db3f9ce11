"""gRPC under load: small tensors beside HTTP in the same rounds, large tensors, streams of responses, and idle streams."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc

from tests.bench import bodies, grpc_workloads, procstat, progress, repositories, servers
from tests.bench.grpc_workloads import GrpcWorkload
from tests.bench.loadgen import Load
from tests.bench.plan import Plan
from tests.bench.turns import LoadSample, Step, take_turns

IDLE_STREAMS = 1_000
_IDLE_CONNECTIONS = 10
_STREAM_REQUESTS = 3
_SETTLE_S = 1.0


@dataclass(frozen=True)
class IdleSample:
    """The host's memory before and while streams are open that do nothing.

    Attributes:
        streams: open calls, each of which has had one answer.
        grown_bytes: what the host's resident memory has grown by.
    """

    server: str
    streams: int
    grown_bytes: int


def measure_small(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Climb the ladder over gRPC and, at each step, over HTTP; then with several calls on each connection."""
    busy = plan.busy_connections // grpc_workloads.STREAMS_PER_CONNECTION
    loads = [(connections, (bodies.add_sub_binary(), grpc_workloads.add_sub())) for connections in plan.connections]
    loads.append((busy, (grpc_workloads.add_sub(grpc_workloads.STREAMS_PER_CONNECTION),)))
    steps = [
        Step(
            workload,
            Load(connections, plan.duration_s, plan.warm_up_s),
            plan.single_rounds if connections == 1 else plan.rounds,
        )
        for connections, workloads in loads
        for workload in workloads
    ]
    return _measure(launchers, repositories.write_pair, steps, scratch)


def measure_large(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Drive identity with every size on one connection."""
    load = Load(1, plan.duration_s, plan.warm_up_s, plan.large_requests)
    steps = [Step(grpc_workloads.identity(size), load, plan.rounds) for size in plan.tensor_bytes]
    return _measure(launchers, repositories.write_pair, steps, scratch)


def measure_stream(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Read all responses of a decoupled model, as fast as they come."""
    load = Load(1, plan.duration_s, plan.warm_up_s, _STREAM_REQUESTS)
    return _measure(launchers, repositories.write_stream, [Step(grpc_workloads.stream(), load, plan.rounds)], scratch)


def measure_idle(launchers: Sequence[servers.Launcher], _plan: Plan, scratch: Path) -> list[IdleSample]:
    """Open streams on a fresh server, use each of them once, and leave them open."""
    repository = scratch / "models"
    repositories.write_pair(repository)
    workload = grpc_workloads.add_sub()
    samples = []
    for launcher in launchers:
        with launcher.start_with_grpc(repository) as server:
            assert server.grpc_port is not None
            grpc_workloads.check(server.grpc_port, workload)
            grown = asyncio.run(_memory_of_streams(server.grpc_port, server.pid, workload))
            progress.show(f"{IDLE_STREAMS:,} idle streams on {server.name}: {grown >> 10:,} KB")
            samples.append(IdleSample(server.name, IDLE_STREAMS, grown))
    return samples


async def _memory_of_streams(port: int, host: int, workload: GrpcWorkload) -> int:
    before = procstat.memory(host).rss_bytes
    # Channels with different options share no connection.
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("bench.number", number)])
        for number in range(_IDLE_CONNECTIONS)
    ]
    calls = []
    for number in range(IDLE_STREAMS):
        call = channels[number % _IDLE_CONNECTIONS].stream_stream(grpc_workloads.STREAMING, bytes, bytes)()
        await call.write(workload.request)
        if await call.read() is grpc.aio.EOF:
            raise bodies.WrongReplyError("a stream ended before its first response")
        calls.append(call)
    await asyncio.sleep(_SETTLE_S)
    grown = procstat.memory(host).rss_bytes - before
    for call in calls:
        call.cancel()
    for channel in channels:
        await channel.close()
    return grown


def _measure(
    launchers: Sequence[servers.Launcher], write: Callable[[Path], None], steps: Sequence[Step], scratch: Path
) -> list[LoadSample]:
    repository = scratch / "models"
    write(repository)
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start_with_grpc(repository)) for launcher in launchers]
        for server in running:
            for step in steps:
                if isinstance(step.workload, GrpcWorkload):
                    assert server.grpc_port is not None
                    grpc_workloads.check(server.grpc_port, step.workload)
                else:
                    bodies.check(server.port, step.workload)
        return take_turns(running, steps, scratch)
