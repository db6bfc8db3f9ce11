"""``python -m tests.bench``: run the benchmark, print its tables, keep its raw results.

With ``VS=triton`` in the environment everything is measured on the reference server too, in the same rounds. With
``VS=mlserver,litserve`` models without code are measured on these.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

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
from tests.bench.plan import FULL, QUICK, Plan
from tests.bench.reference import ReferenceUnavailableError
from tests.bench.results import Results, describe_machine

VERSUS_VARIABLE = "VS"
_VERSUS = "triton"
_LAUNCHERS = {"pybackend": servers.pybackend_launcher, _VERSUS: servers.reference_launcher}
_MODEL_SERVERS = (model_servers.MLSERVER, model_servers.LITSERVE)

Measure = Callable[[Sequence[servers.Launcher], Plan, Path], Any]


def _alone(measure: Callable[[Plan, Path], Any]) -> Measure:
    return lambda _launchers, plan, scratch: measure(plan, scratch)


def _in_memory(measure: Callable[[Plan], Any]) -> Measure:
    """A measurement without a server."""
    return lambda _launchers, plan, _scratch: measure(plan)


def _environments(results: Results, scratch: Path) -> None:
    for name in ("loads", "pack"):
        (scratch / name).mkdir()
    results.environment_loads = packing.measure_loads(results.plan, scratch / "loads")
    results.packs = packing.measure_pack(results.plan, scratch / "pack")


def _operations(results: Results, scratch: Path) -> None:
    for name in ("watching", "reloads", "scrapes"):
        (scratch / name).mkdir()
        (scratch / name).chmod(0o755)
    watching = operations.measure_watching(results.plan, scratch / "watching")
    reloads = operations.measure_reloads(results.plan, scratch / "reloads")
    scraped, results.scrapes, many = operations.measure_scrapes(results.plan, scratch / "scrapes")
    results.operations = [*watching, *reloads, *scraped]
    results.many_models = [many]


def _console(results: Results, scratch: Path) -> None:
    if not console_cost.is_possible():
        progress.show("console: left out, because chromium or the packages of `make test-console` are missing")
        return
    for name in ("load", "many"):
        (scratch / name).mkdir()
        (scratch / name).chmod(0o755)
    results.console = console_cost.measure(results.plan, scratch)


_MODELS_OF_SERVERS = "model-servers"

_SECTIONS: dict[str, tuple[str, Measure] | Callable[[Results, Path], None]] = {
    # where the results go, and how they are measured; or a function that does both
    "startup": ("starts", startup.measure),
    "instances": ("instances", _alone(instances.measure)),
    "environments": _environments,
    "footprint": ("footprints", footprint.measure),
    "sandbox": ("sandbox", _alone(instances.measure_requests)),
    "varied": ("varied", varied.measure),
    "ladder": ("ladder", ladder.measure),
    "front-ends": ("front_ends", front_ends.measure),
    "noisy": ("noisy", noise.measure),
    "batched": ("batched", ladder.measure_batched),
    "large": ("large", large_tensors.measure_speed),
    "client-memory": ("client_memory", client_memory.measure),
    "growth": ("growth", large_tensors.measure_growth),
    "calls": ("calls", one_client.measure_calls),
    "ensemble": ("ensemble", one_client.measure_ensemble),
    "chain": ("chain", one_client.measure_chain),
    "stream": ("stream", one_client.measure_stream),
    "strings": ("strings", one_client.measure_strings),
    "grpc": ("grpc", grpc_load.measure_small),
    "grpc-large": ("grpc_large", grpc_load.measure_large),
    "grpc-stream": ("grpc_stream", grpc_load.measure_stream),
    "grpc-idle": ("grpc_idle", grpc_load.measure_idle),
    "queues": ("queues", _in_memory(queue_cost.measure)),
    "http2": ("http2", _in_memory(http2_cost.measure)),
    "in-process": ("in_process", _alone(in_process_cost.measure)),
    "bound": ("bound", _alone(bound_functions.measure)),
    "openai": ("openai", _alone(openai_streams.measure)),
    "call-memory": ("call_memory", call_memory.measure),
    "operations": _operations,
    "console": _console,
    "frameworks": ("frameworks", frameworks.measure),
    "framework-memory": (
        "framework_memory",
        lambda launchers, _plan, scratch: framework_memory.measure(launchers, scratch),
    ),
    _MODELS_OF_SERVERS: ("model_servers", model_servers.measure),
}


def _measure(name: str, results: Results, launchers: Sequence[servers.Launcher], scratch: Path) -> None:
    found = _SECTIONS[name]
    if callable(found):
        found(results, scratch)
    else:
        field, measure = found
        setattr(results, field, measure(launchers, results.plan, scratch))


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
                if name != _MODELS_OF_SERVERS:
                    _measure(name, results, launchers, Path(scratch))
                elif others:
                    _measure(name, results, [launchers[0], *others], Path(scratch))
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
