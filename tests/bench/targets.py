"""The figures pybackend sets itself, and whether a run reached them.

Ratios are formed within a round, between windows that lay seconds apart, and the median of the rounds' ratios is
judged: the machine may drift between rounds without touching it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench import (
    bodies,
    client_memory,
    console_cost,
    frameworks,
    grpc_targets,
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
from tests.bench.loadgen import LoadResult
from tests.bench.plan import MB
from tests.bench.results import Results

JSON = "add_sub JSON"
BINARY = "add_sub binary"
CPU_VERSUS_REFERENCE = {BINARY: 0.2, JSON: 0.3}
HOST_CPU_VERSUS_ECHO = 1.2
THROUGHPUT_VERSUS_REFERENCE = 4.0
MANY_CONNECTIONS_VERSUS_BUSY = 1.1
LATENCY_VERSUS_REFERENCE = 0.65
NOISY_CPU_VERSUS_REFERENCE = 0.35
NOISY_THROUGHPUT_VERSUS_REFERENCE = 2.5
NOISY_LATENCY_VERSUS_REFERENCE = 1.0
BATCHED_THROUGHPUT_VERSUS_REFERENCE = 3.0
BATCHED_CPU_VERSUS_REFERENCE = 0.3
CALL_VERSUS_REFERENCE = 0.7
STEP_VERSUS_REFERENCE = 0.7
CHAIN_VERSUS_REFERENCE = 1.0
STREAM_VERSUS_REFERENCE = 1.0
STRINGS_VERSUS_REFERENCE = 0.2
BYTES_PER_SECOND_VERSUS_REFERENCE = {1 * MB: 3.0, 16 * MB: 5.0, 64 * MB: 6.0}
LONG_QUEUE_VERSUS_SHORT = 2.0
IN_PROCESS_CALL_US = 40.0
SHARED_THROUGHPUT_VERSUS_REFERENCE = 2.0
LONG_VIEW_VERSUS_SHORT = 1.3
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
WATCHED_VERSUS_UNWATCHED = 1.05
RELOADED_VERSUS_STEADY = 3.0
LOOKED_AT_VERSUS_ALONE = 1.03
CONSOLE_PAGE_S = 1.0
# Windows of a few thousand requests: what two equal ones may differ by here.
SCRAPED_VERSUS_UNSCRAPED = 1.2
SCRAPE_S = 0.050
OPENAI_FIRST_S = 0.005
OPENAI_PIECE_US = 200.0
MANY_READY_EACH_S = 0.1
FEWEST_MANY_MODELS = 100
# What two equal models on one server may differ by here.
SANDBOX_PER_REQUEST = 1.05
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
        *_load_verdicts(results),
        *_noisy_verdicts(results),
        *_batched_verdicts(results),
        *_call_verdicts(results),
        *_ensemble_verdicts(results),
        *_stream_and_string_verdicts(results),
        *_large_verdicts(results),
        *_client_memory_verdicts(results),
        *_ratio_verdicts(results),
        *_idle_verdicts(results),
        *_queue_verdicts(results),
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


def _load_verdicts(results: Results) -> Iterator[Verdict]:
    many = results.plan.busy_connections
    busy = f"{many} connections"
    for workload, limit in CPU_VERSUS_REFERENCE.items():
        yield from _at_most(
            f"{workload}, {busy}: CPU of host + stub against the reference's",
            _ratios(results, workload, many, servers.REFERENCE, _cpu_us),
            limit,
        )
    yield from _at_most(
        f"{BINARY}, {busy}: CPU of the host against a bare uvicorn echo's",
        _ratios(results, BINARY, many, servers.ECHO, lambda r: r.host_cpu_us),
        HOST_CPU_VERSUS_ECHO,
    )
    yield from _at_least(
        f"{BINARY}, {busy}: infer/s against the reference's",
        _ratios(results, BINARY, many, servers.REFERENCE, lambda r: r.infer_per_s),
        THROUGHPUT_VERSUS_REFERENCE,
    )
    own = results.loads(servers.PYBACKEND, BINARY, many)
    for connections in results.plan.connections:
        if connections > many:
            more = results.loads(servers.PYBACKEND, BINARY, connections)
            yield from _at_most(
                f"{BINARY}, {connections:,} connections: CPU of host + stub against that at {many}",
                [_cpu_us(more[round_]) / _cpu_us(own[round_]) for round_ in more if round_ in own],
                MANY_CONNECTIONS_VERSUS_BUSY,
            )
    yield from _at_most(
        f"{BINARY}, 1 connection: p50 against the reference's",
        _ratios(results, BINARY, 1, servers.REFERENCE, _p50_us),
        LATENCY_VERSUS_REFERENCE,
    )


def _noisy_verdicts(results: Results) -> Iterator[Verdict]:
    many = results.plan.busy_connections
    for kind in noise.KINDS:
        workload = noise.workload_name(BINARY, kind)
        yield from _at_most(
            f"{workload}, {many} connections: CPU of host + stub against the reference's",
            _ratios(results, workload, many, servers.REFERENCE, _cpu_us),
            NOISY_CPU_VERSUS_REFERENCE,
        )
        yield from _at_least(
            f"{workload}, {many} connections: infer/s against the reference's",
            _ratios(results, workload, many, servers.REFERENCE, lambda r: r.infer_per_s),
            NOISY_THROUGHPUT_VERSUS_REFERENCE,
        )
        yield from _at_most(
            f"{workload}, 1 connection: p50 against the reference's",
            _ratios(results, workload, 1, servers.REFERENCE, _p50_us),
            NOISY_LATENCY_VERSUS_REFERENCE,
        )


def _batched_verdicts(results: Results) -> Iterator[Verdict]:
    connections = results.plan.batched_connections
    name = f"{bodies.BATCHED}, {connections} connections"
    yield from _at_least(
        f"{name}: infer/s against the reference's",
        _ratios(results, bodies.BATCHED, connections, servers.REFERENCE, lambda r: r.infer_per_s),
        BATCHED_THROUGHPUT_VERSUS_REFERENCE,
    )
    yield from _at_most(
        f"{name}: CPU of host + stub against the reference's",
        _ratios(results, bodies.BATCHED, connections, servers.REFERENCE, _cpu_us),
        BATCHED_CPU_VERSUS_REFERENCE,
    )


def _call_verdicts(results: Results) -> Iterator[Verdict]:
    for figure, value in (("p50", _p50_us), ("CPU of host + stubs", _cpu_us)):
        yield from _at_most(
            f"{bodies.ONE_CALL}, 1 connection: {figure} that the call adds against the reference's",
            _ratios_of_added(results, bodies.ONE_CALL, bodies.DIRECT, value),
            CALL_VERSUS_REFERENCE,
        )


def _ensemble_verdicts(results: Results) -> Iterator[Verdict]:
    for figure, value in (("p50", _p50_us), ("CPU of host + stubs", _cpu_us)):
        yield from _at_most(
            f"{bodies.TWO_STEPS}, 1 connection: {figure} over {bodies.ONE_STEP} against the reference's",
            _ratios_of_added(results, bodies.TWO_STEPS, bodies.ONE_STEP, value),
            STEP_VERSUS_REFERENCE,
        )
    chain = bodies.chain_name(results.plan.chain_bytes)
    for figure, value in (("p50", _p50_us), ("CPU of host + stubs", _cpu_us)):
        yield from _at_most(
            f"{chain}: {figure} against the reference's",
            _ratios(results, chain, 1, servers.REFERENCE, value),
            CHAIN_VERSUS_REFERENCE,
        )


def _stream_and_string_verdicts(results: Results) -> Iterator[Verdict]:
    for figure, value in (("p50", _p50_us), ("CPU of host + stubs", _cpu_us)):
        yield from _at_most(
            f"{bodies.STREAM} to a model that counts them: {figure} against the reference's",
            _ratios(results, bodies.STREAM, 1, servers.REFERENCE, value),
            STREAM_VERSUS_REFERENCE,
        )
    yield from _at_most(
        f"{bodies.STRINGS}, there and back: p50 against the reference's",
        _ratios(results, bodies.STRINGS, 1, servers.REFERENCE, _p50_us),
        STRINGS_VERSUS_REFERENCE,
    )


def _large_verdicts(results: Results) -> Iterator[Verdict]:
    for size in results.plan.tensor_bytes:
        workload = f"identity {bodies.size_name(size)}"
        yield from _at_least(
            f"{workload}: GB/s against the reference's",
            _ratios(results, workload, 1, servers.REFERENCE, lambda r: 1 / r.p50_us),
            BYTES_PER_SECOND_VERSUS_REFERENCE[size],
        )
    for sample in results.growth:
        if sample.server == servers.PYBACKEND:
            grown = sample.peak.rss_bytes - sample.before.rss_bytes
            yield Verdict(
                f"identity {bodies.size_name(sample.tensor_bytes)}: growth of the host's memory",
                f"<= {sample.in_flight_bytes / MB:.1f} MB, the bytes in flight (+ {GROWTH_SLACK_BYTES // MB} MB)",
                f"{grown / MB:.1f} MB",
                grown <= sample.in_flight_bytes + GROWTH_SLACK_BYTES,
            )


def _ratio_verdicts(results: Results) -> Iterator[Verdict]:
    for goal in (
        *grpc_targets.goals(results),
        *varied.goals(results),
        *frameworks.goals(results.frameworks),
        *model_servers.goals(results.model_servers),
    ):
        yield from (_at_least if goal.at_least else _at_most)(goal.name, goal.ratios, goal.limit)


def _idle_verdicts(results: Results) -> Iterator[Verdict]:
    for sample in results.grpc_idle:
        if sample.server == servers.PYBACKEND:
            each = sample.grown_bytes / sample.streams
            yield Verdict(
                f"{sample.streams:,} idle streams over gRPC: memory of each",
                f"<= {grpc_targets.IDLE_STREAM_BYTES / 1024:.0f} KB",
                f"{each / 1024:.1f} KB",
                each <= grpc_targets.IDLE_STREAM_BYTES,
            )


def _client_memory_verdicts(results: Results) -> Iterator[Verdict]:
    sizes = [size for size in results.plan.tensor_bytes if size >= client_memory.FEWEST_BYTES]
    for size in sizes:
        for view in (False, True):
            workload = bodies.shared_name(size, view=view)
            yield from _at_least(
                f"{workload}: infer/s against the reference's",
                _ratios(results, workload, 1, servers.REFERENCE, lambda r: r.infer_per_s),
                SHARED_THROUGHPUT_VERSUS_REFERENCE,
            )
    for size in sizes[-1:]:
        short = results.loads(servers.PYBACKEND, bodies.first_element_name(client_memory.SMALL_BYTES), 1)
        long = results.loads(servers.PYBACKEND, bodies.first_element_name(size), 1)
        yield from _at_most(
            f"{bodies.first_element_name(size)}: p50 against that of {bodies.size_name(client_memory.SMALL_BYTES)}",
            [_p50_us(long[round_]) / _p50_us(short[round_]) for round_ in long if round_ in short],
            LONG_VIEW_VERSUS_SHORT,
        )


def _queue_verdicts(results: Results) -> Iterator[Verdict]:
    cpu_us = {(sample.waiting, sample.round): sample.cpu_us for sample in results.queues}
    short, long = min(results.plan.queue_lengths), max(results.plan.queue_lengths)
    yield from _at_most(
        f"a queue of {long:,} requests with deadlines and priorities: CPU per request against one of {short:,}",
        [cpu_us[long, round_] / own for (waiting, round_), own in cpu_us.items() if waiting == short],
        LONG_QUEUE_VERSUS_SHORT,
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
    yield from _at_most(
        "an environment with numpy: packed, against the sum of its parts alone",
        [
            seconds / sum(part[round_] for part in parts)
            for round_, seconds in results.pack_seconds(packing.PACK).items()
            if all(round_ in part for part in parts)
        ],
        PACK_VERSUS_PARTS,
    )
    more = _differences(
        results.environment_load_seconds(packing.PACKED), results.environment_load_seconds(packing.PLAIN)
    )
    if more:
        yield _milliseconds("load of a model: what an environment that is unpacked adds", more, CACHED_ENVIRONMENT_S)


def _sandbox_verdicts(results: Results) -> Iterator[Verdict]:
    plan = results.plan
    for connections in (min(plan.connections), plan.busy_connections):
        confined, free = (
            results.loads(servers.PYBACKEND, bodies.confined_name(sandbox), connections)
            for sandbox in (instances.STANDARD, instances.OFF)
        )
        ratios = [_cpu_us(confined[round_]) / _cpu_us(free[round_]) for round_ in confined if round_ in free]
        if ratios:
            name = f"add_sub in the sandbox, {connections} connections: CPU of host + stub against add_sub outside"
            verdict = statistics.median(ratios) <= SANDBOX_PER_REQUEST
            yield Verdict(name, f"<= {SANDBOX_PER_REQUEST:.2f}x", _spread(ratios, "x"), verdict)


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
    own = results.loads(servers.PYBACKEND, operations.PLAIN.name, many)
    unwatched = results.loads(operations.UNWATCHED, operations.PLAIN.name, many)
    yield from _at_most(
        f"{operations.PLAIN.name}, {many} connections: CPU of host + stub with metrics and traces against without",
        [_cpu_us(own[round_]) / _cpu_us(unwatched[round_]) for round_ in own if round_ in unwatched],
        WATCHED_VERSUS_UNWATCHED,
    )
    for quiet, disturbed, limit in (
        (operations.STEADY, operations.RELOADED, RELOADED_VERSUS_STEADY),
        (operations.AMONG_MANY, operations.SCRAPED, SCRAPED_VERSUS_UNSCRAPED),
    ):
        before, after = (results.loads(servers.PYBACKEND, name, many) for name in (quiet, disturbed))
        ratios = [after[round_].p99_us / before[round_].p99_us for round_ in after if round_ in before]
        yield from _at_most(f"{disturbed}: p99 against {quiet}", ratios, limit)
    if results.scrapes:
        seconds = [sample.seconds for sample in results.scrapes]
        yield _milliseconds(f"a metrics page with {results.scrapes[0].models} models", seconds, SCRAPE_S)
    for sample in results.many_models:
        if sample.models < FEWEST_MANY_MODELS:
            continue  # the server's own start would count
        each = [sample.ready_s / sample.models]
        yield _milliseconds(f"{sample.models} models: ready, for each of them", each, MANY_READY_EACH_S)


def _console_verdicts(results: Results) -> Iterator[Verdict]:
    many = results.plan.busy_connections
    alone, looked_at = (
        results.loads(servers.PYBACKEND, name, many) for name in (console_cost.ALONE, console_cost.LOOKED_AT)
    )
    for figure, value in (("CPU of the host", lambda each: each.host_cpu_us), ("p99", lambda each: each.p99_us)):
        ratios = [value(looked_at[round_]) / value(alone[round_]) for round_ in looked_at if round_ in alone]
        yield from _at_most(f"{console_cost.LOOKED_AT}: {figure} against none", ratios, LOOKED_AT_VERSUS_ALONE)
    if results.console.idle_cores:
        cores, most = statistics.median(results.console.idle_cores), LOOKED_AT_VERSUS_ALONE - 1
        shown = _spread([100 * each for each in results.console.idle_cores], " %")
        yield Verdict(
            "CPU of the host for an open console, of one core", f"<= {100 * most:.0f} %", shown, cores <= most
        )
    if results.console.pages_s:
        name = f"the console's first page with {console_cost.MANY_MODELS} models"
        yield _milliseconds(name, results.console.pages_s, CONSOLE_PAGE_S)


def _p50_us(result: LoadResult) -> float:
    return result.p50_us


def _cpu_us(result: LoadResult) -> float:
    return result.host_cpu_us + result.stub_cpu_us


def _ratios(
    results: Results, workload: str, connections: int, other: str, value: Callable[[LoadResult], float]
) -> list[float]:
    own = results.loads(servers.PYBACKEND, workload, connections)
    others = results.loads(other, workload, connections)
    return [value(own[round_]) / value(others[round_]) for round_ in own if round_ in others]


def _ratios_of_added(results: Results, workload: str, over: str, value: Callable[[LoadResult], float]) -> list[float]:
    own = results.added(servers.PYBACKEND, workload, value, over=over)
    others = results.added(servers.REFERENCE, workload, value, over=over)
    # In a window as short as the quick benchmark's noise may eat up all that is added: that is no ratio.
    return [own[round_] / others[round_] for round_ in own if others.get(round_, 0) > 0]


def _differences(left: dict[int, float], right: dict[int, float]) -> list[float]:
    return [left[round_] - right[round_] for round_ in left if round_ in right]


def _at_most(name: str, ratios: list[float], limit: float) -> Iterator[Verdict]:
    if ratios:
        yield Verdict(name, f"<= {limit:g}x", _spread(ratios, "x"), statistics.median(ratios) <= limit)


def _at_least(name: str, ratios: list[float], limit: float) -> Iterator[Verdict]:
    if ratios:
        yield Verdict(name, f">= {limit:g}x", _spread(ratios, "x"), statistics.median(ratios) >= limit)


def _seconds(name: str, differences: list[float], limit: float) -> Verdict:
    return Verdict(name, f"<= {limit:.1f} s", _spread(differences, " s"), statistics.median(differences) <= limit)


def _milliseconds(name: str, seconds: list[float], limit_s: float) -> Verdict:
    spread = _spread([each * 1e3 for each in seconds], " ms")
    return Verdict(name, f"<= {limit_s * 1e3:.0f} ms", spread, statistics.median(seconds) <= limit_s)


def _spread(values: list[float], unit: str) -> str:
    middle = f"{statistics.median(values):.2f}{unit}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"
