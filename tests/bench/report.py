"""Prints what was measured as Markdown: medians over the rounds, with the foreign load they ran under."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.bench import bodies, framework_memory, frameworks, front_ends, grpc_workloads, packing, startup, targets
from tests.bench.loadgen import LoadResult, load_median
from tests.bench.plan import MB
from tests.bench.results import Results
from tests.bench.turns import LoadSample


def render(results: Results) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    sections = (
        *(_under_load(title, getattr(results, name)) for name, title in _UNDER_LOAD.items()),
        _under_load("An open console (CPU per request)", results.console.loads),
        _front_ends(results),
        _calls(results),
        _ensembles(results),
        _streams_and_strings(results),
        _large(results),
        _growth(results),
        _grpc_large(results),
        _grpc_idle(results),
        _queues(results),
        _http2(results),
        _in_process(results),
        _openai(results),
        _call_memory(results),
        _starts(results),
        _instances(results),
        _environments(results),
        _footprints(results),
        _frameworks(results),
        _framework_memory(results),
        _under_load("An open console (CPU per request)", results.console.loads),
        _targets(results),
    )
    return "\n\n".join([machine, *filter(None, sections)]) + "\n"


class _Group(NamedTuple):
    """The windows of one row."""

    workload: str
    connections: int
    server: str
    windows: Sequence[LoadResult]


_Column = Callable[[_Group], object]


def _median(value: Callable[[LoadResult], float], form: str) -> _Column:
    return lambda group: format(load_median(group.windows, value), form)


_COLUMNS: Mapping[str, _Column] = {
    "request": lambda group: group.workload,
    "connections": lambda group: group.connections,
    "server": lambda group: group.server,
    "infer/s": _median(lambda window: window.infer_per_s, ",.0f"),
    "p50 us": _median(lambda window: window.p50_us, ",.0f"),
    "p99 us": _median(lambda window: window.p99_us, ",.0f"),
    "host CPU us": _median(lambda window: window.host_cpu_us, ".1f"),
    "front end CPU us": _median(lambda window: window.front_end_cpu_us, ".1f"),
    "stub CPU us": _median(lambda window: window.stub_cpu_us, ".1f"),
    "both us": _median(lambda window: window.host_cpu_us + window.stub_cpu_us, ".1f"),
    "client CPU us": _median(lambda window: window.client_cpu_us, ".1f"),
    "p50 ms": _median(lambda window: window.p50_us / 1e3, ".2f"),
    "host CPU ms": _median(lambda window: window.host_cpu_us / 1e3, ".2f"),
    "stub CPU ms": _median(lambda window: window.stub_cpu_us / 1e3, ".2f"),
    "both ms": _median(lambda window: (window.host_cpu_us + window.stub_cpu_us) / 1e3, ".2f"),
    "client CPU ms": _median(lambda window: window.client_cpu_us / 1e3, ".2f"),
    "foreign cores": lambda group: _foreign(window.foreign_cores for window in group.windows),
    "stolen cores": lambda group: _foreign(window.steal_cores for window in group.windows),
    "errors": lambda group: sum(window.errors for window in group.windows),
    "rounds": lambda group: len(group.windows),
}


def _of_windows(
    title: str, samples: Sequence[LoadSample], names: str, more: Mapping[str, _Column] | None = None
) -> str:
    """A table with a row for each request, connections and server; ``names``: its columns, separated by commas."""
    columns = {**_COLUMNS, **(more or {})}
    header = names.split(", ")
    rows = [[columns[name](group) for name in header] for group in _grouped(samples)]
    return section(title, header, rows)


_UNDER_LOAD = {
    "varied": "Small requests that differ from one to the next (CPU per request)",
    "ladder": "Small tensors (CPU per request)",
    "noisy": "Small tensors on a busy machine (CPU per request)",
    "batched": "Batches (CPU per request)",
    "client_memory": "Shared memory of the client, 1 connection (CPU per request)",
    "grpc": "gRPC: small tensors (CPU per request)",
    "grpc_stream": "gRPC: a stream of responses",
    "bound": "Bound functions (their CPU is that of the program, under stub)",
    "sandbox": "The sandbox's cost per request",
    "operations": "Operations: watched, scraped, reloaded (CPU per request)",
    "model_servers": "Models without code on other servers, in JSON (CPU per request)",
}


def _under_load(title: str, samples: Sequence[LoadSample]) -> str:
    return _of_windows(
        title,
        samples,
        "request, connections, server, infer/s, p50 us, p99 us, host CPU us, stub CPU us, both us, client CPU us, "
        "foreign cores, stolen cores, errors, rounds",
    )


def _front_ends(results: Results) -> str:
    named = {rung.name: rung for rung in front_ends.rungs(1 << 10)}

    def many(group: _Group) -> str:
        rung = named.get(group.server)
        return "" if rung is None else f"{front_ends.limits(group.windows, rung, 1 << 10).least:,.0f}"

    kinds = ("host_cpu_us", "front_end_cpu_us", "stub_cpu_us")

    def all_cpu_us(group: _Group) -> str:
        medians = [load_median(group.windows, lambda window, kind=kind: getattr(window, kind)) for kind in kinds]  # type: ignore[misc]
        return f"{sum(medians):.1f}"

    return _of_windows(
        f"Front ends and instances, {front_ends.CONNECTIONS} connections (CPU per request)",
        results.front_ends,
        "request, server, infer/s, host CPU us, front end CPU us, stub CPU us, client CPU us, without the client, "
        "infer/s with cores for all, foreign cores, stolen cores, errors",
        {"without the client": all_cpu_us, "infer/s with cores for all": many},
    )


def _framework_memory(results: Results) -> str:
    if not results.framework_memory:
        return ""
    table = framework_memory.render(results.framework_memory)
    return f"### Models without code: memory of one more instance\n\n{table}"


def _frameworks(results: Results) -> str:
    if not results.frameworks:
        return ""
    return f"### Models without code, and the library alone (CPU per row)\n\n{frameworks.render(results.frameworks)}"


def _rate_of(sizes: Mapping[str, int]) -> _Column:
    """GB/s one way, from the size of each request's tensor."""
    return lambda group: f"{sizes[group.workload] / load_median(group.windows, lambda r: r.p50_us) / 1e3:.2f}"


def _grpc_large(results: Results) -> str:
    sizes = {grpc_workloads.identity_name(size): size for size in results.plan.tensor_bytes}
    names = "request, server, p50 ms, GB/s one way, host CPU ms, stub CPU ms, foreign cores, errors, rounds"
    title = "gRPC: large tensors, 1 connection"
    return _of_windows(title, results.grpc_large, names, {"GB/s one way": _rate_of(sizes)})


def _grpc_idle(results: Results) -> str:
    rows = [[each.server, each.streams, f"{each.grown_bytes / each.streams / 1024:.1f}"] for each in results.grpc_idle]
    return section("gRPC: idle streams, the host's memory", ["server", "streams", "KB each"], rows)


def _calls(results: Results) -> str:
    return _over_the_first("Calls from model to model, 1 connection (CPU per request)", results, results.calls)


def _ensembles(results: Results) -> str:
    tables = (
        _over_the_first("Ensembles, 1 connection (CPU per request)", results, results.ensemble),
        _over_the_first("Ensembles of large tensors, 1 connection (CPU per request)", results, results.chain),
    )
    return "\n\n".join(filter(None, tables))


def _over_the_first(title: str, results: Results, samples: Sequence[LoadSample]) -> str:
    """What requests take, and how much of that is beyond what the first one, the simplest, takes."""

    def added(value: Callable[[LoadResult], float], form: str) -> _Column:
        def column(group: _Group) -> str:
            simplest = samples[0].workload
            if group.workload == simplest:
                return ""
            more = results.added(group.server, group.workload, value, over=simplest)
            return format(statistics.median(more.values()), form)

        return column

    return _of_windows(
        title,
        samples,
        "request, server, p50 us, p99 us, host CPU us, stub CPU us, both us, added p50 us, added CPU us, foreign cores, "
        "errors, rounds",
        {
            "added p50 us": added(lambda r: r.p50_us, ",.0f"),
            "added CPU us": added(lambda r: r.host_cpu_us + r.stub_cpu_us, ",.1f"),
        },
    )


def _streams_and_strings(results: Results) -> str:
    title = f"Streams and strings, 1 connection (ms per {bodies.STREAMED_RESPONSES:,} responses are us per response)"
    names = "request, server, p50 ms, host CPU ms, stub CPU ms, both ms, foreign cores, errors, rounds"
    return _of_windows(title, [*results.stream, *results.strings], names)


def _large(results: Results) -> str:
    sizes = {f"identity {bodies.size_name(size)}": size for size in results.plan.tensor_bytes}
    names = (
        "request, server, p50 ms, GB/s one way, host CPU ms, stub CPU ms, client CPU ms, foreign cores, errors, rounds"
    )
    return _of_windows("Large tensors, 1 connection", results.large, names, {"GB/s one way": _rate_of(sizes)})


def _growth(results: Results) -> str:
    rows = [
        [
            f"identity {bodies.size_name(sample.tensor_bytes)}",
            sample.server,
            f"{sample.in_flight_bytes / MB:.1f}",
            f"{sample.before.rss_bytes / MB:.1f} / {sample.before.pss_bytes / MB:.1f}",
            f"{(sample.peak.rss_bytes - sample.before.rss_bytes) / MB:+.1f}",
            f"{(sample.peak.pss_bytes - sample.before.pss_bytes) / MB:+.1f}",
            f"{(sample.after.rss_bytes - sample.before.rss_bytes) / MB:+.1f}",
            f"{(sample.after.pss_bytes - sample.before.pss_bytes) / MB:+.1f}",
            f"{sample.foreign_cores:.2f}",
        ]
        for sample in results.growth
    ]
    header = ["request", "server", "bytes in flight", "RSS / PSS before", "peak RSS", "peak PSS"]
    header += ["RSS after", "PSS after", "foreign cores"]
    return section("The host's memory during large tensors (MB)", header, rows)


def _queues(results: Results) -> str:
    rows = []
    for waiting in results.plan.queue_lengths:
        cpu_us = [sample.cpu_us for sample in results.queues if sample.waiting == waiting]
        if cpu_us:
            rows.append(
                [
                    f"{waiting:,}",
                    f"{statistics.median(cpu_us):.2f}",
                    f"{min(cpu_us):.2f} to {max(cpu_us):.2f}",
                    len(cpu_us),
                ]
            )
    header = ["requests waiting", "CPU us per request", "range", "rounds"]
    return section("Queue with deadlines and priorities, no server", header, rows)


def _http2(results: Results) -> str:
    rows = []
    for library, calls_per_read in sorted({(sample.library, sample.calls_per_read) for sample in results.http2}):
        kind = (library, calls_per_read)
        cpu_us = [sample.cpu_us for sample in results.http2 if (sample.library, sample.calls_per_read) == kind]
        rows.append(
            [library, calls_per_read, f"{statistics.median(cpu_us):.2f}", f"{min(cpu_us):.2f} to {max(cpu_us):.2f}"]
        )
    header = ["HTTP/2 of", "calls per read", "CPU us per call", "range"]
    return section("Unary calls over HTTP/2, no socket and no messages", header, rows)


def _in_process(results: Results) -> str:
    rows = []
    for callers in dict.fromkeys(sample.callers for sample in results.in_process):
        samples = [sample for sample in results.in_process if sample.callers == callers]
        cpu_us = [sample.cpu_us for sample in samples]
        rows.append(
            [
                callers,
                f"{statistics.median(cpu_us):.1f}",
                f"{min(cpu_us):.1f} to {max(cpu_us):.1f}",
                f"{statistics.median(sample.calls_per_s for sample in samples):,.0f}",
                f"{statistics.median(sample.foreign_cores for sample in samples):.2f}",
            ]
        )
    header = ["16 callers", "CPU us per call", "range", "calls/s", "cores of all others, the model's among them"]
    return section("Calls in the process, without the model's own CPU", header, rows)


def _openai(results: Results) -> str:
    rows = [
        [
            sample.streams,
            sample.pieces,
            f"{statistics.median(sample.first_ms):.2f}",
            f"{statistics.median(sample.piece_ms):.2f}",
            f"{sample.cpu_us:.0f}",
        ]
        for sample in results.openai
    ]
    header = [
        "streams at once",
        "pieces",
        "first piece, ms",
        "from model to client, ms",
        "CPU us of the host per piece",
    ]
    return section("Streams of OpenAI's API", header, rows)


def _call_memory(results: Results) -> str:
    rows = [
        [
            f"{sample.requests} x {bodies.large_calls(sample.calls, sample.call_bytes).name}",
            sample.server,
            f"{sample.call_ms:.1f}",
            f"{sample.before.rss_bytes / MB:.1f} / {sample.before.pss_bytes / MB:.1f}",
            f"{sample.peak.rss_bytes / MB:.1f} / {sample.peak.pss_bytes / MB:.1f}",
            f"{sample.after.rss_bytes / MB:.1f} / {sample.after.pss_bytes / MB:.1f}",
            f"{sample.shared_bytes / MB:+.1f}",
            f"{sample.foreign_cores:.2f}",
        ]
        for sample in results.call_memory
    ]
    header = ["requests", "server", "ms per call", "RSS / PSS before", "peak RSS / PSS", "RSS / PSS after"]
    header += ["the machine's shared memory", "foreign cores"]
    return section("Memory of all processes during large calls from model to model (MB)", header, rows)


def _starts(results: Results) -> str:
    rows = []
    servers_and_models = dict.fromkeys((sample.server, sample.models) for sample in results.starts)
    for server, models in servers_and_models:
        samples = [sample for sample in results.starts if (sample.server, sample.models) == (server, models)]
        seconds = [sample.seconds for sample in samples]
        rows.append(
            [
                server,
                "" if server == startup.WEB_STACK else models,
                f"{statistics.median(seconds):.3f}",
                f"{min(seconds):.3f} to {max(seconds):.3f}",
                _foreign(sample.foreign_cores for sample in samples),
                len(samples),
            ]
        )
    header = ["server", "models", "ready after s", "range", "foreign cores", "rounds"]
    return section("Start-up", header, rows)


def _instances(results: Results) -> str:
    rows = []
    for start, sandbox in dict.fromkeys((sample.start, sample.sandbox) for sample in results.instances):
        ms = [seconds * 1e3 for seconds in results.load_seconds(start, sandbox).values()]
        rows.append(
            [start, sandbox, f"{statistics.median(ms):.1f}", f"{min(ms):.1f} to {max(ms):.1f}", len(ms)],
        )
    header = ["process", "sandbox", "loaded after ms", "range", "rounds"]
    return section("One instance more in a server that runs", header, rows)


def _environments(results: Results) -> str:
    rows: list[list[object]] = []
    for part in (packing.PACK, *packing.PARTS):
        rows += _seconds_row(part if part == packing.PACK else f"{part}, alone", results.pack_seconds(part).values())
    for environment in (packing.PLAIN, packing.PACKED):
        rows += _seconds_row(f"load in {environment}", results.environment_load_seconds(environment).values())
    return section("An environment with numpy", ["what", "s", "range", "rounds"], rows)


def _seconds_row(what: str, seconds: Collection[float]) -> list[list[object]]:
    if not seconds:
        return []
    return [[what, f"{statistics.median(seconds):.3f}", f"{min(seconds):.3f} to {max(seconds):.3f}", len(seconds)]]


def _footprints(results: Results) -> str:
    rows = [
        [
            sample.server,
            sample.models,
            f"{sample.host.pss_bytes / MB:.1f} ({sample.host.rss_bytes / MB:.1f})",
            f"{sample.stub.pss_bytes / MB:.1f} ({sample.stub.rss_bytes / MB:.1f})",
            f"{sample.total_pss_bytes / MB:.1f}",
            sample.stubs,
            sample.host_threads,
            sample.stub_threads,
            f"{sample.ready_s:.2f}",
        ]
        for sample in results.footprints
    ]
    header = ["server", "models", "host PSS (RSS)", "one stub PSS (RSS)", "all PSS", "stubs", "host threads"]
    return section("Footprint (MB)", [*header, "stub threads", "ready after s"], rows)


def _targets(results: Results) -> str:
    verdicts = targets.judge(results)
    rows = [[verdict.name, verdict.goal, verdict.measured, "met" if verdict.met else "MISSED"] for verdict in verdicts]
    return section("Targets (median of the rounds, and their range)", ["target", "goal", "measured", "verdict"], rows)


def _grouped(samples: Sequence[LoadSample]) -> list[_Group]:
    """Windows by request, connections and server, in an order that puts comparable rows under each other."""
    groups: dict[tuple[str, int, str], list[LoadResult]] = {}
    for sample in samples:
        groups.setdefault((sample.workload, sample.connections, sample.server), []).append(sample.result)
    return [_Group(*key, windows) for key, windows in groups.items()]


def _foreign(cores: Iterable[float]) -> str:
    values = list(cores)
    return f"{statistics.median(values):.2f} (max {max(values):.2f})"


def section(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown below its title; nothing without rows."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"### {title}", "", *("| " + " | ".join(map(str, line)) + " |" for line in lines)])
