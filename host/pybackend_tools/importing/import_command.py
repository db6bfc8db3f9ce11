"""``pybackend import``: its command line and its output."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pybackend.cli.command_line import SILENT, visited, visited_settings
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.model_names import check_new_name, name_from
from pybackend.cli.output import counted, divided, print_error, print_text, terminated
from pybackend.errors import ServerError
from pybackend.flag import integer
from pybackend.modelconfig.parser import read_config_file
from pybackend.observability.log_lines import one_line
from pybackend.runner import Serve
from pybackend.settings import Settings
from pybackend_client.trial import Request
from pybackend_tools.importing.detection import detect
from pybackend_tools.importing.entry import EntryPath, StagedEntry, place_of
from pybackend_tools.importing.kinds import MLFLOW, FoundModel
from pybackend_tools.importing.measurement import Measures
from pybackend_tools.importing.mlflow_directory import PYFUNC
from pybackend_tools.importing.run import ENVIRONMENT, LABELS, ImportRun, backed_by, signature_text, with_parameters
from pybackend_tools.importing.verification import Comparison

_DEFAULT_REPOSITORY, _DEFAULT_TIMEOUT_S, _DEFAULT_TOLERANCE = Path("models"), 600.0, 1e-4

_MOST_CLASSES = 8
"""Names of classes that a line shows."""

_PLAIN_STEMS = frozenset({"checkpoint", "data", "file", "model", "pytorch_model", "saved_model", "xgboost", "lightgbm"})
"""Names of files that say nothing about the model: its directory names it then."""

_EPILOG = """\
examples:
  pybackend import resnet.onnx
  pybackend import churn.json --repository models --name churn --verify
  pybackend import pipeline.pkl --trust-pickle
  pybackend import resnet_v2.onnx --name resnet --version 2
  pybackend import churn.json -- --backend-config=fil,environment=fil.tar.gz

exit status: 0 if the model was imported, 1 if not: then nothing was written
"""


def make_parser() -> CommandParser:
    """The parser of ``import``'s arguments."""
    parser = CommandParser(
        prog="pybackend import",
        usage="pybackend import FILE_OR_DIRECTORY [--FLAG[=VALUE]]... [-- SERVE_FLAG...]",
        description="Makes an entry of a model repository from a model's file or directory: the model is started once, and completes "
        "its configuration; a sample request, its answer and a test are written too. The content decides what the file is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("path", type=Path, metavar="FILE_OR_DIRECTORY", help="the model")
    add_entry_flags(parser)
    add("--version", type=integer(1), metavar="N", help="the version; adds it to a model that exists [1]")
    add("--force", action="store_true", help="replace the model, or with --version the version, if it exists")
    add("--verify", action="store_true", help="compare the served answers with the framework's, and measure")
    add(
        "--tolerance",
        type=float,
        default=_DEFAULT_TOLERANCE,
        metavar="X",
        help=f"with --verify, the largest difference that is allowed, relative to values above 1 [{_DEFAULT_TOLERANCE:g}]",
    )
    add("--backend", default="", metavar="NAME", help="serve with this backend [the usual one of the kind]")
    add("--sample", type=Path, metavar="FILE", help="a request in JSON to use as the sample [a random one]")
    add("--json", action="store_true", help="print JSON, for programs")
    add(
        "--timeout",
        type=float,
        default=_DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long the load, or a request, may take [{_DEFAULT_TIMEOUT_S:g}]",
    )
    return parser


def add_entry_flags(parser: CommandParser) -> None:
    """The flags that say what a new entry is, and where."""
    add = parser.add_argument
    add("--name", metavar="NAME", help="the model's name [from the name of the file or directory]")
    add(
        "--repository",
        type=Path,
        default=_DEFAULT_REPOSITORY,
        metavar="DIR",
        help="directory of models to write into [models]",
    )
    add("--trust-pickle", action="store_true", help="read a pickle, which runs any code that its writer put into it")
    add("--config", type=Path, metavar="FILE", help="a config.pbtxt to start from, for what the model does not state")
    add(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the model; may be repeated",
    )
    add(
        "--environment",
        type=Path,
        metavar="PATH",
        help="the model's environment: an archive or a directory [the server's Python]",
    )


def run_import(arguments: Sequence[str], serve: Serve) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    own, flags = divided(arguments)
    given = parser.parsed(own)
    base, sample = base_of(given, parser), _sample(given.sample)
    backend = given.backend or base.get("backend", "")
    found = backed_by(detect(given.path, flavor=PYFUNC if backend == MLFLOW.backend else ""), backend)
    name = given.name or derived_name(found, parser)
    check_new_name(name, parser)
    check_trust(found, trusts=given.trust_pickle)
    place = place_of(given.repository, name, given.version, force=given.force)
    signal.signal(signal.SIGTERM, terminated)
    with StagedEntry(place) as entry:
        settings = visited_settings(entry.directory, SILENT, flags)
        environments = {name: each.get("environment", "") for name, each in settings.backend_settings.items()}
        run = ImportRun(found, entry, base, sample, given.verify, given.timeout, environments)
        run.lay_out()
        comparison = _served(run, settings, serve, given.tolerance)
        entry.commit()
    for warning in [] if given.json else run.warnings:
        print_error(f"warning: {one_line(warning)}")
    _report(run, place, comparison, as_json=given.json)
    return 0


def _served(run: ImportRun, settings: Settings, serve: Serve, tolerance: float) -> Comparison | None:
    """Serve the entry, and compare its answers if that is wanted.

    Raises PybackendError if the model does not load or answer, or answers something else than its framework, and
    KeyboardInterrupt if a signal has ended the server.
    """
    try:
        visited(serve, settings, run.visit)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, terminated)
    if not run.verify:
        return None
    comparison = run.comparison(tolerance)
    if comparison.fault:
        raise ServerError(f"{comparison.fault}. Nothing was imported")
    return comparison


# --- Arguments ------------------------------------------------------------------------------------------------------


def base_of(given: argparse.Namespace, parser: CommandParser) -> dict[str, Any]:
    """The configuration that the flags of :func:`add_entry_flags` ask for. Raises PybackendError if they are wrong."""
    parameters = dict(parser.pairs("--parameter", given.parameter))
    if given.environment is not None:
        if not given.environment.exists():
            raise ServerError(f"the environment {given.environment} does not exist: `pybackend pack` makes one")
        parameters[ENVIRONMENT] = str(given.environment.absolute())
    document = {} if given.config is None else read_config_file(given.config)
    return with_parameters({name: value for name, value in document.items() if name != "name"}, parameters)


def _sample(path: Path | None) -> Request | None:
    if path is None:
        return None
    try:
        document = json.loads(path.read_bytes())
        for tensor in document["inputs"]:
            tensor["name"], tensor["datatype"], tensor["shape"], tensor["data"]
    except OSError as error:
        raise ServerError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise ServerError(
            f'{path} is no request in JSON: write {{"inputs": [{{"name": "X", "datatype": "FP32", "shape": [1], "data": [0.5]}}]}}'
        ) from None
    return {"inputs": document["inputs"]}


def check_trust(found: FoundModel, *, trusts: bool) -> None:
    """Refuse a pickle that the user has not said to trust. Raises ServerError with the ways out."""
    if found.kind.is_pickle and not trusts:
        raise ServerError(
            f"{found.source} is {found.kind.title}, and reading one runs any code that its writer put into it: if you trust the "
            "model, add --trust-pickle; a file of skops needs no trust"
        )


def derived_name(found: FoundModel, parser: CommandParser) -> str:
    """The name of a model that its user has not named. Raises UsageError if none can be made from its path."""
    source = found.source.absolute()
    stem = source.name if source.is_dir() else source.stem
    texts = [source.parent.name, stem] if stem.lower() in _PLAIN_STEMS else [stem, source.parent.name]
    name = next(filter(None, map(name_from, texts)), "")
    if not name:
        parser.refuse_with(f"no model name can be made from {found.source}: choose one with --name=NAME")
    return name


# --- Output ---------------------------------------------------------------------------------------------------------


def _report(run: ImportRun, place: EntryPath, comparison: Comparison | None, *, as_json: bool) -> None:
    if as_json:
        document = {
            "model": place.name,
            "version": place.version,
            "directory": str(place.model),
            "kind": run.found.kind.title.partition(" ")[2],
            "backend": run.config["backend"],
            "warnings": run.warnings,
            "verified": _verified(comparison, run.measures),
        }
        print_text(json.dumps(document, ensure_ascii=False, indent=2))
        return
    most = run.config["max_batch_size"]
    print_text(
        f"imported {run.found.source}, {run.found.kind.title}, as {place.model}, version {place.version}: "
        f"{signature_text(run.config)}{f', batches up to {most}' if most else ''}"
    )
    if run.class_names:
        shown = ", ".join(run.class_names[:_MOST_CLASSES]) + (", ..." if len(run.class_names) > _MOST_CLASSES else "")
        print_text(f"its {len(run.class_names)} classes are in {place.model}/{LABELS}: {shown}")
    if comparison is not None and run.measures is not None:
        print_text("\n".join(_verification_lines(comparison, run.measures)))
    if run.found.requirements and ENVIRONMENT not in run.config.get("parameters", {}):
        print_text(
            f"its own packages: `pybackend pack {place.model}/requirements.txt -o {place.name}.tar.gz`, and import it again with "
            f"--environment={place.name}.tar.gz"
        )
    sys.stdout.write(
        f"\npybackend serve {place.repository}\npytest {place.model}   # compares with the recorded answers\n"
    )


def _verified(comparison: Comparison | None, measures: Measures | None) -> dict[str, Any] | None:
    if comparison is None or measures is None:
        return None
    return {
        "requests": comparison.requests,
        "largest_difference": comparison.difference,
        "latency_p50_s": measures.latency_p50_s,
        "cpu_s": measures.cpu_s,
        "memory_bytes": measures.memory_bytes,
        "start_s": measures.start_s,
    }


def _verification_lines(comparison: Comparison, measures: Measures) -> list[str]:
    where = f" (output '{comparison.output}')" if comparison.output else ""
    cpu = "?" if measures.cpu_s is None else f"{measures.cpu_s * 1e6:.0f} us"
    memory = "?" if measures.memory_bytes is None else f"{measures.memory_bytes / 1e6:.1f} MB"
    first = f"verified with {counted(comparison.requests, 'request')}: largest difference from the framework {comparison.difference:.3g}{where}"
    second = (
        f"latency p50 {measures.latency_p50_s * 1e3:.2f} ms at one client ({measures.requests} requests), CPU of the model's process "
        f"{cpu} per request, memory {memory}, start {measures.start_s:.2f} s"
    )
    return [first, second]
