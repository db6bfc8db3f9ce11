"""Prints what was measured as Markdown: medians over the rounds, with the foreign load they ran under."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence

from tests.bench import bodies, framework_memory, frameworks, front_ends, grpc_workloads, packing, startup, targets
from tests.bench.loadgen import LoadResult, load_median
from tests.bench.plan import MB
from tests.bench.results import Results
from tests.bench.turns import LoadSample


def render(results: Results) -> str:
    """The whole report."""
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    sections = (
        _varied,
        _ladder,
        _front_ends,
        _noisy,
        _batched,
        _calls,
        _ensembles,
        _streams_and_strings,
        _large,
        _client_memory,
        _growth,
        _grpc,
        _grpc_large,
        _grpc_idle,
        _queues,
        _http2,
        _in_process,
        _bound,
        _openai,
        _call_memory,
        _starts,
        _instances,
        _environments,
        _footprints,
        _sandbox,
        _operations,
        _console,
        _frameworks,
        _framework_memory,
        _model_servers,
        _targets,
    )
    parts = [machine, *filter(None, (section(results) for section in sections))]
    return "\n\n".join(parts) + "\n"


def _varied(results: Results) -> str:
    return _under_load("Small requests that differ from one to the next (CPU per request)", results.varied)


def _ladder(results: Results) -> str:
    return _under_load("Small tensors (CPU per request)", results.ladder)


def _front_ends(results: Results) -> str:
    rows = []
    named = {rung.name: rung for rung in front_ends.rungs(1 << 10)}
    for (workload, _, server), windows in _grouped(results.front_ends).items():
        kinds = ("host_cpu_us", "front_end_cpu_us", "stub_cpu_us", "client_cpu_us")
        spent = [load_median(windows, lambda window, kind=kind: getattr(window, kind)) for kind in kinds]  # type: ignore[misc]
        rung = named.get(server)
        many = "" if rung is None else f"{front_ends.limits(windows, rung, 1 << 10).least:,.0f}"
        rows.append(
            [
                workload,
                server,
                f"{load_median(windows, lambda window: window.infer_per_s):,.0f}",
                *(f"{each:.1f}" for each in spent),
                f"{sum(spent[:3]):.1f}",
                many,
                _foreign(window.foreign_cores for window in windows),
                _foreign(window.steal_cores for window in windows),
                sum(window.errors for window in windows),
            ]
        )
    header = [
        "request",
        "server",
        "infer/s",
        "server us",
        "front ends us",
        "stubs us",
        "client us",
        "without the client",
    ]
    header += ["infer/s with cores for all", "foreign cores", "stolen cores", "errors"]
    title = f"Front ends and instances, {front_ends.CONNECTIONS} connections (CPU per request)"
    return section(title, header, rows)


def _noisy(results: Results) -> str:
    return _under_load("Small tensors on a busy machine (CPU per request)", results.noisy)


def _framework_memory(results: Results) -> str:
    if not results.framework_memory:
        return ""
    table = framework_memory.render(results.framework_memory)
    return f"### Models without code: memory of one more instance\n\n{table}"


def _frameworks(results: Results) -> str:
    if not results.frameworks:
        return ""
    return f"### Models without code, and the library alone (CPU per row)\n\n{frameworks.render(results.frameworks)}"


def _model_servers(results: Results) -> str:
    return _under_load("Models without code on other servers, in JSON (CPU per request)", results.model_servers)


def _operations(results: Results) -> str:
    return _under_load("Operations: watched, scraped, reloaded (CPU per request)", results.operations)


def _console(results: Results) -> str:
    return _under_load("An open console (CPU per request)", results.console.loads)


def _batched(results: Results) -> str:
    return _under_load("Batches (CPU per request)", results.batched)


def _client_memory(results: Results) -> str:
    return _under_load("Shared memory of the client, 1 connection (CPU per request)", results.client_memory)


def _under_load(title: str, samples: Sequence[LoadSample]) -> str:
    rows = []
    for (workload, connections, server), windows in _grouped(samples).items():
        rows.append(
            [
                workload,
                connections,
                server,
                f"{load_median(windows, lambda r: r.infer_per_s):,.0f}",
                f"{load_median(windows, lambda r: r.p50_us):,.0f}",
                f"{load_median(windows, lambda r: r.p99_us):,.0f}",
                f"{load_median(windows, lambda r: r.host_cpu_us):.1f}",
                f"{load_median(windows, lambda r: r.stub_cpu_us):.1f}",
                f"{load_median(windows, lambda r: r.host_cpu_us + r.stub_cpu_us):.1f}",
                f"{load_median(windows, lambda r: r.client_cpu_us):.1f}",
                _foreign(r.foreign_cores for r in windows),
                _foreign(r.steal_cores for r in windows),
                sum(r.errors for r in windows),
                len(windows),
            ]
        )
    header = ["request", "connections", "server", "infer/s", "p50 us", "p99 us", "host CPU us", "stub CPU us"]
    header += ["both", "client CPU us", "foreign cores", "stolen cores", "errors", "rounds"]
    return section(title, header, rows)


def _grpc(results: Results) -> str:
    small = _under_load("gRPC: small tensors (CPU per request)", results.grpc)
    return "\n\n".join(filter(None, (small, _under_load("gRPC: a stream of responses", results.grpc_stream))))


def _grpc_large(results: Results) -> str:
    sizes = {grpc_workloads.identity_name(size): size for size in results.plan.tensor_bytes}
    rows = [
        [
            workload,
            server,
            f"{load_median(windows, lambda r: r.p50_us) / 1e3:.2f}",
            f"{sizes[workload] / load_median(windows, lambda r: r.p50_us) / 1e3:.2f}",
            f"{load_median(windows, lambda r: r.host_cpu_us) / 1e3:.2f}",
            f"{load_median(windows, lambda r: r.stub_cpu_us) / 1e3:.2f}",
            _foreign(r.foreign_cores for r in windows),
            sum(r.errors for r in windows),
            len(windows),
        ]
        for (workload, _, server), windows in _grouped(results.grpc_large).items()
    ]
    header = [
        "request",
        "server",
        "p50 ms",
        "GB/s one way",
        "host CPU ms",
        "stub CPU ms",
        "foreign cores",
        "errors",
        "rounds",
    ]
    return section("gRPC: large tensors, 1 connection", header, rows)


def _grpc_idle(results: Results) -> str:
    rows = [[each.server, each.streams, f"{each.grown_bytes / each.streams / 1024:.1f}"] for each in results.grpc_idle]
    return section("gRPC: idle streams, the host's memory", ["server", "streams", "KB each"], rows)


def _calls(results: Results) -> str:
    rows = _rows_over_the_first(results, results.calls)
    return section("Calls from model to model, 1 connection (CPU per request)", _HEADER_OVER, rows)


def _ensembles(results: Results) -> str:
    rows = [*_rows_over_the_first(results, results.ensemble), *_rows_over_the_first(results, results.chain)]
    return section("Ensembles, 1 connection (CPU per request)", _HEADER_OVER, rows)


_HEADER_OVER = ["request", "server", "p50 us", "p99 us", "host CPU us", "stubs CPU us", "both"]
_HEADER_OVER += ["added p50 us", "added CPU us", "foreign cores", "errors", "rounds"]


def _rows_over_the_first(results: Results, samples: Sequence[LoadSample]) -> list[list[object]]:
    """What requests take, and how much of that is beyond what the first one, the simplest, takes."""
    rows: list[list[object]] = []
    for (workload, _, server), windows in _grouped(samples).items():
        simplest = samples[0].workload
        added_p50_us = results.added(server, workload, lambda r: r.p50_us, over=simplest)
        added_cpu_us = results.added(server, workload, lambda r: r.host_cpu_us + r.stub_cpu_us, over=simplest)
        rows.append(
            [
                workload,
                server,
                f"{load_median(windows, lambda r: r.p50_us):,.0f}",
                f"{load_median(windows, lambda r: r.p99_us):,.0f}",
                f"{load_median(windows, lambda r: r.host_cpu_us):.1f}",
                f"{load_median(windows, lambda r: r.stub_cpu_us):.1f}",
                f"{load_median(windows, lambda r: r.host_cpu_us + r.stub_cpu_us):.1f}",
                "" if workload == simplest else f"{statistics.median(added_p50_us.values()):,.0f}",
                "" if workload == simplest else f"{statistics.median(added_cpu_us.values()):,.1f}",
                _foreign(r.foreign_cores for r in windows),
                sum(r.errors for r in windows),
                len(windows),
            ]
        )
    return rows


def _streams_and_strings(results: Results) -> str:
    rows = []
    for (workload, _, server), windows in _grouped([*results.stream, *results.strings]).items():
        rows.append(
            [
                workload,
                server,
                f"{load_median(windows, lambda r: r.p50_us) / 1e3:.2f}",
                f"{load_median(windows, lambda r: r.host_cpu_us) / 1e3:.2f}",
                f"{load_median(windows, lambda r: r.stub_cpu_us) / 1e3:.2f}",
                f"{load_median(windows, lambda r: r.host_cpu_us + r.stub_cpu_us) / 1e3:.2f}",
                _foreign(r.foreign_cores for r in windows),
                sum(r.errors for r in windows),
                len(windows),
            ]
        )
    header = ["request", "server", "p50 ms", "host CPU ms", "stubs CPU ms", "both", "foreign cores", "errors", "rounds"]
    title = f"Streams and strings, 1 connection (ms per {bodies.STREAMED_RESPONSES:,} responses are us per response)"
    return section(title, header, rows)


def _large(results: Results) -> str:
    size_of = {f"identity {bodies.size_name(size)}": size for size in results.plan.tensor_bytes}
    rows = []
    for (workload, _, server), windows in _grouped(results.large).items():
        p50_us = load_median(windows, lambda r: r.p50_us)
        rows.append(
            [
                workload,
                server,
                f"{p50_us / 1e3:.2f}",
                f"{size_of[workload] / p50_us / 1e3:.2f}",
                f"{load_median(windows, lambda r: r.host_cpu_us) / 1e3:.2f}",
                f"{load_median(windows, lambda r: r.stub_cpu_us) / 1e3:.2f}",
                f"{load_median(windows, lambda r: r.client_cpu_us) / 1e3:.2f}",
                _foreign(r.foreign_cores for r in windows),
                sum(r.errors for r in windows),
                len(windows),
            ]
        )
    header = ["request", "server", "p50 ms", "GB/s one way", "host CPU ms", "stub CPU ms", "client CPU ms"]
    header += ["foreign cores", "errors", "rounds"]
    return section("Large tensors, 1 connection", header, rows)


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


def _bound(results: Results) -> str:
    return _under_load("Bound functions (their CPU is that of the program, under stub)", results.bound)


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


def _sandbox(results: Results) -> str:
    return _under_load("The sandbox's cost per request", results.sandbox)


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


def _grouped(samples: Sequence[LoadSample]) -> dict[tuple[str, int, str], list[LoadResult]]:
    """Windows by request, connections and server, in an order that puts comparable rows under each other."""
    groups: dict[tuple[str, int, str], list[LoadResult]] = {}
    for sample in samples:
        groups.setdefault((sample.workload, sample.connections, sample.server), []).append(sample.result)
    return groups


def _foreign(cores: Iterable[float]) -> str:
    values = list(cores)
    return f"{statistics.median(values):.2f} (max {max(values):.2f})"


def section(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown below its title; nothing without rows."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"### {title}", "", *("| " + " | ".join(map(str, line)) + " |" for line in lines)])
