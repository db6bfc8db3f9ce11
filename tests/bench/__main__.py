"""``python -m tests.bench``: run the benchmark, print its tables, keep its raw results.

With ``VS=triton`` in the environment everything is measured on the reference server too, in the same rounds. With
``VS=mlserver,litserve`` models without code are measured on these.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tests.bench import (
    bound_functions,
    call_memory,
    client_memory,
    console_cost,
    footprint,
    framework_memory,
    frameworks,
    front_ends,
    grpc_load,
    http2_cost,
    in_process_cost,
    instances,
    ladder,
    large_tensors,
    loadgen,
    model_servers,
    noise,
    one_client,
    openai_streams,
    operations,
    packing,
    progress,
    queue_cost,
    report,
    servers,
    startup,
    varied,
)
from tests.bench.bodies import WrongReplyError
from tests.bench.packing import PackingError
from tests.bench.plan import FULL, QUICK
from tests.bench.reference import ReferenceUnavailableError
from tests.bench.results import Results, describe_machine

VERSUS_VARIABLE = "VS"
_VERSUS = "triton"
_LAUNCHERS = {"pybackend": servers.pybackend_launcher, _VERSUS: servers.reference_launcher}
_MODEL_SERVERS = (model_servers.MLSERVER, model_servers.LITSERVE)

Section = Callable[[Results, Sequence[servers.Launcher], Path], None]


def _startup(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.starts = startup.measure(launchers, results.plan, scratch)


def _footprint(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.footprints = footprint.measure(launchers, results.plan, scratch)


def _instances(results: Results, _launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.instances = instances.measure(results.plan, scratch)


def _environments(results: Results, _launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    for name in ("loads", "pack"):
        (scratch / name).mkdir()
    results.environment_loads = packing.measure_loads(results.plan, scratch / "loads")
    results.packs = packing.measure_pack(results.plan, scratch / "pack")


def _sandbox(results: Results, _launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.sandbox = instances.measure_requests(results.plan, scratch)


def _ladder(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.ladder = ladder.measure(launchers, results.plan, scratch)


def _noisy(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.noisy = noise.measure(launchers, results.plan, scratch)


def _batched(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.batched = ladder.measure_batched(launchers, results.plan, scratch)


def _large(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.large = large_tensors.measure_speed(launchers, results.plan, scratch)


def _client_memory(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.client_memory = client_memory.measure(launchers, results.plan, scratch)


def _growth(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.growth = large_tensors.measure_growth(launchers, results.plan, scratch)


def _calls(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.calls = one_client.measure_calls(launchers, results.plan, scratch)


def _ensemble(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.ensemble = one_client.measure_ensemble(launchers, results.plan, scratch)


def _chain(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.chain = one_client.measure_chain(launchers, results.plan, scratch)


def _stream(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.stream = one_client.measure_stream(launchers, results.plan, scratch)


def _strings(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.strings = one_client.measure_strings(launchers, results.plan, scratch)


def _varied(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.varied = varied.measure(launchers, results.plan, scratch)


def _front_ends(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.front_ends = front_ends.measure(launchers, results.plan, scratch)


def _grpc(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.grpc = grpc_load.measure_small(launchers, results.plan, scratch)


def _grpc_large(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.grpc_large = grpc_load.measure_large(launchers, results.plan, scratch)


def _grpc_stream(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.grpc_stream = grpc_load.measure_stream(launchers, results.plan, scratch)


def _grpc_idle(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.grpc_idle = grpc_load.measure_idle(launchers, results.plan, scratch)


def _queues(results: Results, _launchers: Sequence[servers.Launcher], _scratch: Path) -> None:
    results.queues = queue_cost.measure(results.plan)


def _http2(results: Results, _launchers: Sequence[servers.Launcher], _scratch: Path) -> None:
    results.http2 = http2_cost.measure(results.plan)


def _in_process(results: Results, _launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.in_process = in_process_cost.measure(results.plan, scratch)


def _bound(results: Results, _launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.bound = bound_functions.measure(results.plan, scratch)


def _openai(results: Results, _launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.openai = openai_streams.measure(results.plan, scratch)


def _call_memory(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.call_memory = call_memory.measure(launchers, results.plan, scratch)


def _frameworks(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.frameworks = frameworks.measure(launchers, results.plan, scratch)


def _framework_memory(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    results.framework_memory = framework_memory.measure(launchers, scratch)


def _servers_of_models(results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    if len(launchers) > 1:
        results.model_servers = model_servers.measure(launchers, results.plan, scratch)


def _operations(results: Results, _launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    for name in ("watching", "reloads", "scrapes"):
        (scratch / name).mkdir()
        (scratch / name).chmod(0o755)
    watching = operations.measure_watching(results.plan, scratch / "watching")
    reloads = operations.measure_reloads(results.plan, scratch / "reloads")
    scraped, results.scrapes, many = operations.measure_scrapes(results.plan, scratch / "scrapes")
    results.operations = [*watching, *reloads, *scraped]
    results.many_models = [many]


def _console(results: Results, _launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    if not console_cost.is_possible():
        progress.show("console: left out, because chromium or the packages of `make test-console` are missing")
        return
    for name in ("load", "many"):
        (scratch / name).mkdir()
        (scratch / name).chmod(0o755)
    results.console = console_cost.measure(results.plan, scratch)


_SECTIONS: dict[str, Section] = {
    "startup": _startup,
    "instances": _instances,
    "environments": _environments,
    "footprint": _footprint,
    "sandbox": _sandbox,
    "varied": _varied,
    "ladder": _ladder,
    "front-ends": _front_ends,
    "noisy": _noisy,
    "batched": _batched,
    "large": _large,
    "client-memory": _client_memory,
    "growth": _growth,
    "calls": _calls,
    "ensemble": _ensemble,
    "chain": _chain,
    "stream": _stream,
    "strings": _strings,
    "grpc": _grpc,
    "grpc-large": _grpc_large,
    "grpc-stream": _grpc_stream,
    "grpc-idle": _grpc_idle,
    "queues": _queues,
    "http2": _http2,
    "in-process": _in_process,
    "bound": _bound,
    "openai": _openai,
    "call-memory": _call_memory,
    "operations": _operations,
    "console": _console,
    "frameworks": _frameworks,
    "framework-memory": _framework_memory,
    "model-servers": _servers_of_models,
}


def main() -> int:
    """Run what the command line asks for; returns the exit status."""
    options = _parse()
    try:
        loadgen.build()
        launchers = [_LAUNCHERS[name]() for name in options.servers if name in _LAUNCHERS]
        others = [model_servers.launcher(name) for name in options.servers if name in _MODEL_SERVERS]
    except (loadgen.LoadError, ReferenceUnavailableError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    results = Results(QUICK if options.quick else FULL, describe_machine())
    failed = False
    for name in options.only:
        progress.show(f"--- {name}")
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            os.chmod(scratch, 0o755)  # models of a server that is root run as others, who have to reach their files
            try:
                compared = [launchers[0], *others] if _SECTIONS[name] is _servers_of_models else launchers
                _SECTIONS[name](results, compared, Path(scratch))
            except (servers.ServerError, loadgen.LoadError, WrongReplyError, PackingError) as error:
                print(f"error: {name} could not be measured: {error}", file=sys.stderr)
                failed = True
        results.save(options.output)
    print(report.render(results))
    progress.show(f"raw results: {options.output}")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, to see that everything works")
    parser.add_argument(
        "--only",
        type=_choices(_SECTIONS),
        default=list(_SECTIONS),
        metavar="SECTION,...",
        help=f"measure only these: {', '.join(_SECTIONS)}",
    )
    parser.add_argument(
        "--servers",
        type=_choices((*_LAUNCHERS, *_MODEL_SERVERS)),
        default=_default_servers(parser),
        metavar="NAME,...",
        help=f"measure only these beside the yardsticks: {', '.join((*_LAUNCHERS, *_MODEL_SERVERS))}",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=loadgen.BUILD_DIRECTORY / "results.json",
        help="where the raw results go (default: %(default)s)",
    )
    return parser.parse_args()


def _default_servers(parser: argparse.ArgumentParser) -> list[str]:
    versus = list(filter(None, os.environ.get(VERSUS_VARIABLE, "").split(",")))
    known = (_VERSUS, *_MODEL_SERVERS)
    for name in versus:
        if name not in known:
            parser.error(f"{VERSUS_VARIABLE}={name} is not known; servers to compare with are {', '.join(known)}")
    return ["pybackend", *versus]


def _choices(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"'{unknown[0]}' is none of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
