"""The figures pybackend sets itself, and whether a run reached them.

Ratios are formed within a round, between windows that lay seconds apart, and the median of the rounds' ratios is
judged: the machine may drift between rounds without touching it.
"""

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.bench import (
    bodies,
    client_memory,
    console_cost,
    frameworks,
    grpc_workloads,
    in_process_cost,
    instances,
    model_servers,
    noise,
    operations,
    packing,
    servers,
    startup,
    varied,
)
from tests.bench.goals import Goal
from tests.bench.loadgen import LoadResult
from tests.bench.plan import MB
from tests.bench.results import Results

JSON = "add_sub JSON"
BINARY = "add_sub binary"


class _Figure(NamedTuple):
    """A figure of a window, and whether more of it is better."""

    name: str
    of: Callable[[LoadResult], float]
    at_least: bool = False


_P50 = _Figure("p50", lambda window: window.p50_us)
_P99 = _Figure("p99", lambda window: window.p99_us)
_CPU = _Figure("CPU of host + stub", lambda window: window.host_cpu_us + window.stub_cpu_us)
_HOST_CPU = _Figure("CPU of the host", lambda window: window.host_cpu_us)
_RATE = _Figure("infer/s", lambda window: window.infer_per_s, at_least=True)
_SPEED = _Figure("speed", lambda window: 1 / window.p50_us, at_least=True)

_SPEED_VERSUS_REFERENCE = {1 * MB: 3.0, 16 * MB: 5.0, 64 * MB: 6.0}
"""By size of the tensor."""

_Row = tuple[str, int, _Figure, float]
"""A workload, its connections, and the limit of the ratio of a figure to the reference server's."""


def _versus_reference(results: Results) -> list[_Row]:
    plan, chain = results.plan, bodies.chain_name(results.plan.chain_bytes)
    many = plan.busy_connections
    noisy = [noise.workload_name(BINARY, kind) for kind in noise.KINDS]
    shared = [size for size in plan.tensor_bytes if size >= client_memory.FEWEST_BYTES]
    return [
        (BINARY, many, _CPU, 0.2),
        (JSON, many, _CPU, 0.3),
        (BINARY, many, _RATE, 4.0),
        (BINARY, 1, _P50, 0.65),
        *((name, many, _CPU, 0.35) for name in noisy),
        *((name, many, _RATE, 2.5) for name in noisy),
        *((name, 1, _P50, 1.0) for name in noisy),
        (bodies.BATCHED, plan.batched_connections, _RATE, 3.0),
        (bodies.BATCHED, plan.batched_connections, _CPU, 0.3),
        (chain, 1, _P50, 1.0),
        (chain, 1, _CPU, 1.0),
        (bodies.STREAM, 1, _P50, 1.0),
        (bodies.STREAM, 1, _CPU, 1.0),
        (bodies.STRINGS, 1, _P50, 0.2),
        *(
            (f"identity {bodies.size_name(size)}", 1, _SPEED, _SPEED_VERSUS_REFERENCE[size])
            for size in plan.tensor_bytes
        ),
        *((bodies.shared_name(size, view=view), 1, _RATE, 2.0) for size in shared for view in (False, True)),
    ]


def _grpc_versus_reference(results: Results) -> list[_Row]:
    many = results.plan.busy_connections
    several = many // grpc_workloads.STREAMS_PER_CONNECTION
    return [
        (grpc_workloads.ADD_SUB, many, _CPU, 0.25),
        (grpc_workloads.ADD_SUB, many, _RATE, 4.0),
        (grpc_workloads.ADD_SUB_STREAMS, several, _CPU, 0.25),
        (grpc_workloads.ADD_SUB_STREAMS, several, _RATE, 4.0),
        (grpc_workloads.ADD_SUB, 1, _P50, 0.65),
        *((grpc_workloads.identity_name(size), 1, _SPEED, 2.0) for size in results.plan.tensor_bytes),
        (grpc_workloads.STREAM, 1, _SPEED, 3.0),
    ]


IDLE_STREAM_BYTES = 30 * 1024
IN_PROCESS_CALL_US = 40.0
START_OVER_IMPORT_S = 0.3
ONE_MORE_MODEL_S = 0.2
ONE_MORE_STUB_BYTES = 4 * MB
MANY_MODELS = 50
MANY_MODELS_S = 3.0
MANY_MODELS_BYTES = 250 * MB
ONE_MORE_INSTANCE_S = {instances.ZYGOTE: 0.010, instances.SPAWN: 0.150}
SANDBOX_PER_START_S = 0.005
PACK_VERSUS_PARTS = 1.2
CACHED_ENVIRONMENT_S = 0.1
LOOKED_AT_VERSUS_ALONE = 1.03
CONSOLE_PAGE_S = 1.0
SCRAPE_S = 0.050
OPENAI_FIRST_S = 0.005
OPENAI_PIECE_US = 200.0
MANY_READY_EACH_S = 0.1
FEWEST_MANY_MODELS = 100
# Socket buffers' bookkeeping and the allocator's grain; a kept or doubled tensor is far more from 16 MB on.
GROWTH_SLACK_BYTES = 2 * MB
# For three processes; a single tensor that was kept would be twenty times as much.
CALL_GROWTH_SLACK_BYTES = 2 * MB


@dataclass(frozen=True)
class Verdict:
    """One target: what was wanted and what came out."""

    name: str
    goal: str
    measured: str
    met: bool


def judge(results: Results) -> list[Verdict]:
    """Judge every target for which this run has the samples."""
    return [
        *itertools.chain.from_iterable(map(_judged, _goals(results))),
        *_growth_verdicts(results),
        *_idle_verdicts(results),
        *_in_process_verdicts(results),
        *_openai_verdicts(results),
        *_call_memory_verdicts(results),
        *_start_verdicts(results),
        *_instance_verdicts(results),
        *_environment_verdicts(results),
        *_footprint_verdicts(results),
        *_sandbox_verdicts(results),
        *_operations_verdicts(results),
        *_console_verdicts(results),
    ]


def _goals(results: Results) -> Iterator[Goal]:
    for rows, loads in (
        (_versus_reference(results), results.loads),
        (_grpc_versus_reference(results), results.grpc_loads),
    ):
        for workload, connections, figure, limit in rows:
            own, others = (loads(server, workload, connections) for server in (servers.PYBACKEND, servers.REFERENCE))
            yield _goal(
                f"{_under(workload, connections)}: {figure.name} against the reference's", own, others, figure, limit
            )
    yield from _goals_over_add_sub(results)
    yield from _goals_of_additions(results)
    yield from _goals_of_grpc(results)
    yield from varied.goals(results)
    yield from frameworks.goals(results.frameworks)
    yield from model_servers.goals(results.model_servers)
    yield _queue_goal(results)


def _goals_over_add_sub(results: Results) -> Iterator[Goal]:
    many = results.plan.busy_connections
    own = results.loads(servers.PYBACKEND, BINARY, many)
    echo = results.loads(servers.ECHO, BINARY, many)
    yield _goal(f"{_under(BINARY, many)}: CPU of the host against a bare uvicorn echo's", own, echo, _HOST_CPU, 1.2)
    for connections in results.plan.connections:
        if connections > many:
            more = results.loads(servers.PYBACKEND, BINARY, connections)
            yield _goal(f"{_under(BINARY, connections)}: {_CPU.name} against that at {many}", more, own, _CPU, 1.1)
    for size in [size for size in results.plan.tensor_bytes if size >= client_memory.FEWEST_BYTES][-1:]:
        short, long = client_memory.SMALL_BYTES, bodies.first_element_name(size)
        windows = (results.loads(servers.PYBACKEND, bodies.first_element_name(each), 1) for each in (size, short))
        yield _goal(f"{long}: p50 against that of {bodies.size_name(short)}", *windows, _P50, 1.3)


def _goals_of_additions(results: Results) -> Iterator[Goal]:
    """What a call, or a further step of an ensemble, adds."""
    for workload, over in ((bodies.ONE_CALL, bodies.DIRECT), (bodies.TWO_STEPS, bodies.ONE_STEP)):
        for figure in (_P50, _CPU):
            own = results.added(servers.PYBACKEND, workload, figure.of, over=over)
            others = results.added(servers.REFERENCE, workload, figure.of, over=over)
            # In a window as short as the quick benchmark's noise may eat up all that is added: that is no ratio.
            ratios = [own[round_] / others[round_] for round_ in own if others.get(round_, 0) > 0]
            name = f"{workload}, 1 connection: {figure.name} over {over} against the reference's"
            yield Goal(name, ratios, 0.7, at_least=False)


def _goals_of_grpc(results: Results) -> Iterator[Goal]:
    many = results.plan.busy_connections
    several = many // grpc_workloads.STREAMS_PER_CONNECTION
    small = results.grpc_loads(servers.PYBACKEND, grpc_workloads.ADD_SUB, many)
    http = results.grpc_loads(servers.PYBACKEND, BINARY, many)
    yield _goal(f"{_under(grpc_workloads.ADD_SUB, many)}: infer/s against HTTP's", small, http, _RATE, 1.0)
    streams = results.grpc_loads(servers.PYBACKEND, grpc_workloads.ADD_SUB_STREAMS, several)
    name = f"{_under(grpc_workloads.ADD_SUB_STREAMS, several)}: infer/s against {many} connections'"
    yield _goal(name, streams, small, _RATE, 1.0)


def _queue_goal(results: Results) -> Goal:
    cpu_us = {(sample.waiting, sample.round): sample.cpu_us for sample in results.queues}
    short, long = min(results.plan.queue_lengths), max(results.plan.queue_lengths)
    name = f"a queue of {long:,} requests with deadlines and priorities: CPU per request against one of {short:,}"
    ratios = [cpu_us[long, round_] / own for (waiting, round_), own in cpu_us.items() if waiting == short]
    return Goal(name, ratios, 2.0, at_least=False)


def _growth_verdicts(results: Results) -> Iterator[Verdict]:
    for sample in results.growth:
        if sample.server == servers.PYBACKEND:
            grown = sample.peak.rss_bytes - sample.before.rss_bytes
            yield Verdict(
                f"identity {bodies.size_name(sample.tensor_bytes)}: growth of the host's memory",
                f"<= {sample.in_flight_bytes / MB:.1f} MB, the bytes in flight (+ {GROWTH_SLACK_BYTES // MB} MB)",
                f"{grown / MB:.1f} MB",
                grown <= sample.in_flight_bytes + GROWTH_SLACK_BYTES,
            )


def _idle_verdicts(results: Results) -> Iterator[Verdict]:
    for sample in results.grpc_idle:
        if sample.server == servers.PYBACKEND:
            each = sample.grown_bytes / sample.streams
            yield Verdict(
                f"{sample.streams:,} idle streams over gRPC: memory of each",
                f"<= {IDLE_STREAM_BYTES / 1024:.0f} KB",
                f"{each / 1024:.1f} KB",
                each <= IDLE_STREAM_BYTES,
            )


def _in_process_verdicts(results: Results) -> Iterator[Verdict]:
    cpu_us = [sample.cpu_us for sample in results.in_process if sample.callers == in_process_cost.COROUTINES]
    if cpu_us:
        median = statistics.median(cpu_us)
        yield Verdict(
            f"a call in the process, {in_process_cost.AT_ONCE} {in_process_cost.COROUTINES}: CPU beside the model's",
            f"at most {IN_PROCESS_CALL_US:g} us",
            f"{median:.1f} us",
            median <= IN_PROCESS_CALL_US,
        )


def _openai_verdicts(results: Results) -> Iterator[Verdict]:
    alone = [sample for sample in results.openai if sample.streams == 1]
    if alone:
        firsts = [statistics.median(sample.first_ms) / 1e3 for sample in alone]
        yield _milliseconds("a stream of OpenAI's API: the first piece, beside the model", firsts, OPENAI_FIRST_S)
    for streams in sorted({sample.streams for sample in results.openai}):
        cpu_us = [sample.cpu_us for sample in results.openai if sample.streams == streams]
        yield Verdict(
            f"{streams} streams of OpenAI's API: CPU of the host for each piece",
            f"<= {OPENAI_PIECE_US:g} us",
            _spread(cpu_us, " us"),
            statistics.median(cpu_us) <= OPENAI_PIECE_US,
        )


def _call_memory_verdicts(results: Results) -> Iterator[Verdict]:
    own = [sample for sample in results.call_memory if sample.server == servers.PYBACKEND]
    for sample in own[1:]:
        # Not by PSS, whose peaks are sampled: the more calls, the better the chance to hit the highest moment of one.
        grown = sample.peak.rss_bytes - own[0].peak.rss_bytes
        yield Verdict(
            f"{sample.requests} x {bodies.large_calls(sample.calls, sample.call_bytes).name}: peak RSS of all processes "
            f"over that of {own[0].requests} x {own[0].calls}",
            f"<= {CALL_GROWTH_SLACK_BYTES // MB} MB",
            f"{grown / MB:.1f} MB",
            grown <= CALL_GROWTH_SLACK_BYTES,
        )


def _start_verdicts(results: Results) -> Iterator[Verdict]:
    counts = results.plan.start_models
    imports = results.start_seconds(startup.WEB_STACK, 0)
    over = _differences(results.start_seconds(servers.PYBACKEND, counts[0]), imports)
    if over:
        yield _seconds("add_sub ready, over the import of the web stack", over, START_OVER_IMPORT_S)
    for fewer, more in itertools.pairwise(counts):
        if more != fewer + 1:
            continue
        extra = _differences(
            results.start_seconds(servers.PYBACKEND, more), results.start_seconds(servers.PYBACKEND, fewer)
        )
        if extra:
            yield _seconds(f"start with {more} models, over {fewer}", extra, ONE_MORE_MODEL_S)


def _instance_verdicts(results: Results) -> Iterator[Verdict]:
    for start, limit in ONE_MORE_INSTANCE_S.items():
        seconds = list(results.load_seconds(start, instances.OFF).values())
        if seconds:
            yield _milliseconds(f"one instance more by {start}", seconds, limit)
    for start in instances.STARTS:
        more = _differences(results.load_seconds(start, instances.STANDARD), results.load_seconds(start, instances.OFF))
        if more:
            yield _milliseconds(f"one instance more by {start}: what its sandbox adds", more, SANDBOX_PER_START_S)


def _environment_verdicts(results: Results) -> Iterator[Verdict]:
    parts = [results.pack_seconds(part) for part in packing.PARTS]
    ratios = [
        seconds / sum(part[round_] for part in parts)
        for round_, seconds in results.pack_seconds(packing.PACK).items()
        if all(round_ in part for part in parts)
    ]
    name = "an environment with numpy: packed, against the sum of its parts alone"
    yield from _judged(Goal(name, ratios, PACK_VERSUS_PARTS, at_least=False))
    more = _differences(
        results.environment_load_seconds(packing.PACKED), results.environment_load_seconds(packing.PLAIN)
    )
    if more:
        yield _milliseconds("load of a model: what an environment that is unpacked adds", more, CACHED_ENVIRONMENT_S)


def _sandbox_verdicts(results: Results) -> Iterator[Verdict]:
    # What two equal models on one server may differ by here.
    for connections in (min(results.plan.connections), results.plan.busy_connections):
        confined, free = (
            results.loads(servers.PYBACKEND, bodies.confined_name(sandbox), connections)
            for sandbox in (instances.STANDARD, instances.OFF)
        )
        name = f"add_sub in the sandbox, {connections} connections: CPU of host + stub against add_sub outside"
        yield from _judged(_goal(name, confined, free, _CPU, 1.05))


def _footprint_verdicts(results: Results) -> Iterator[Verdict]:
    own = [sample for sample in results.footprints if sample.server == servers.PYBACKEND]
    for few, many in itertools.pairwise(own):
        each = (many.total_pss_bytes - few.total_pss_bytes) / (many.models - few.models)
        yield Verdict(
            f"PSS of one more stub, from {few.models} to {many.models} models, the host's share included",
            f"<= {ONE_MORE_STUB_BYTES // MB} MB",
            f"{each / MB:.1f} MB",
            each <= ONE_MORE_STUB_BYTES,
        )
    if len(own) > 1:
        few, many = own[0], own[-1]
        yield Verdict(
            f"threads of the host, {many.models} models against {few.models}",
            "no more",
            f"{many.host_threads} against {few.host_threads}",
            many.host_threads <= few.host_threads,
        )
    for sample in own:
        if sample.models == MANY_MODELS:
            ready_s, total_bytes = sample.ready_s, sample.total_pss_bytes
            yield Verdict(
                f"{MANY_MODELS} models of one environment: ready",
                f"<= {MANY_MODELS_S:.0f} s",
                f"{ready_s:.2f} s",
                ready_s <= MANY_MODELS_S,
            )
            yield Verdict(
                f"{MANY_MODELS} models of one environment: PSS of all processes",
                f"<= {MANY_MODELS_BYTES // MB} MB",
                f"{total_bytes / MB:.0f} MB",
                total_bytes <= MANY_MODELS_BYTES,
            )


def _operations_verdicts(results: Results) -> Iterator[Verdict]:
    many = results.plan.busy_connections
    own, bare = (
        results.loads(server, operations.PLAIN.name, many) for server in (servers.PYBACKEND, operations.UNWATCHED)
    )
    name = f"{_under(operations.PLAIN.name, many)}: {_CPU.name} with metrics and traces against without"
    yield from _judged(_goal(name, own, bare, _CPU, 1.05))
    for quiet, disturbed, limit in (
        (operations.STEADY, operations.RELOADED, 3.0),
        # Windows of a few thousand requests: what two equal ones may differ by here.
        (operations.AMONG_MANY, operations.SCRAPED, 1.2),
    ):
        before, after = (results.loads(servers.PYBACKEND, name, many) for name in (quiet, disturbed))
        yield from _judged(_goal(f"{disturbed}: p99 against {quiet}", after, before, _P99, limit))
    if results.scrapes:
        seconds = [sample.seconds for sample in results.scrapes]
        yield _milliseconds(f"a metrics page with {results.scrapes[0].models} models", seconds, SCRAPE_S)
    for sample in results.many_models:
        if sample.models < FEWEST_MANY_MODELS:
            continue  # the server's own start would count
        each = [sample.ready_s / sample.models]
        yield _milliseconds(f"{sample.models} models: ready, for each of them", each, MANY_READY_EACH_S)


def _console_verdicts(results: Results) -> Iterator[Verdict]:
    alone, looked_at = (
        results.loads(servers.PYBACKEND, name, results.plan.busy_connections)
        for name in (console_cost.ALONE, console_cost.LOOKED_AT)
    )
    for figure in (_HOST_CPU, _P99):
        name = f"{console_cost.LOOKED_AT}: {figure.name} against none"
        yield from _judged(_goal(name, looked_at, alone, figure, LOOKED_AT_VERSUS_ALONE))
    if results.console.idle_cores:
        cores, most = statistics.median(results.console.idle_cores), LOOKED_AT_VERSUS_ALONE - 1
        shown = _spread([100 * each for each in results.console.idle_cores], " %")
        yield Verdict(
            "CPU of the host for an open console, of one core", f"<= {100 * most:.0f} %", shown, cores <= most
        )
    if results.console.pages_s:
        name = f"the console's first page with {console_cost.MANY_MODELS} models"
        yield _milliseconds(name, results.console.pages_s, CONSOLE_PAGE_S)


def _under(workload: str, connections: int) -> str:
    return f"{workload}, {connections:,} connection{'s' if connections > 1 else ''}"


def _goal(name: str, own: dict[int, LoadResult], others: dict[int, LoadResult], figure: _Figure, limit: float) -> Goal:
    ratios = [figure.of(own[round_]) / figure.of(others[round_]) for round_ in own if round_ in others]
    return Goal(name, ratios, limit, at_least=figure.at_least)


def _judged(goal: Goal) -> Iterator[Verdict]:
    if goal.ratios:
        median = statistics.median(goal.ratios)
        met = median >= goal.limit if goal.at_least else median <= goal.limit
        sign = ">=" if goal.at_least else "<="
        yield Verdict(goal.name, f"{sign} {goal.limit:g}x", _spread(goal.ratios, "x"), met)


def _differences(left: dict[int, float], right: dict[int, float]) -> list[float]:
    return [left[round_] - right[round_] for round_ in left if round_ in right]


def _seconds(name: str, differences: list[float], limit: float) -> Verdict:
    return Verdict(name, f"<= {limit:.1f} s", _spread(differences, " s"), statistics.median(differences) <= limit)


def _milliseconds(name: str, seconds: list[float], limit_s: float) -> Verdict:
    spread = _spread([each * 1e3 for each in seconds], " ms")
    return Verdict(name, f"<= {limit_s * 1e3:.0f} ms", spread, statistics.median(seconds) <= limit_s)


def _spread(values: list[float], unit: str) -> str:
    middle = f"{statistics.median(values):.2f}{unit}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"
