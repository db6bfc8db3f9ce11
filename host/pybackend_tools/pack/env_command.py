"""``pybackend env``: inspects and maintains environments of models, in the cache and as archives."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybackend.cli.command_parser import PlainParser, UsageError
from pybackend.cli.output import divided, print_text, table_lines
from pybackend.environment.cache import CacheEntry, EnvironmentCache, cache_places, default_cache_directory
from pybackend.environment.hooks import HookEffect
from pybackend.environment.inspection import Inspection, inspect_environment
from pybackend.environment.interpreter import find_interpreter
from pybackend.environment.specification import SpecificationCache
from pybackend.errors import ModelEnvironmentError

if TYPE_CHECKING:
    from pybackend.environment.environment import Environment
    from pybackend.sandbox.model_sandbox import ModelSandbox
    from pybackend.sandbox.sandbox import Sandbox

_KEY_CHARACTERS = 12
"""Characters of a key that are shown. Any unambiguous prefix is accepted."""

_MOST_DIFFERENCES = 10

Outcome = tuple[int, object, list[str]]
"""Exit status, the data for ``--json``, and the lines printed without it."""

_DAY_S = 24 * 3600.0


def make_parser() -> argparse.ArgumentParser:
    """The command line behind ``pybackend env``."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON, for programs")
    common.add_argument(
        "--environment-cache-directory",
        type=Path,
        default=None,
        metavar="DIR",
        help="the environment cache, as configured for the server",
    )
    parser: argparse.ArgumentParser = PlainParser(
        prog="pybackend env", description="Inspects and maintains the environments of models."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("list", parents=[common], help="list the environments that are unpacked on this machine")
    inspect = commands.add_parser(
        "inspect", parents=[common], help="show the contents of an environment; 1 if it cannot be used here"
    )
    inspect.add_argument("path", type=Path, metavar="ARCHIVE_OR_DIRECTORY")
    verify = commands.add_parser(
        "verify", parents=[common], help="compare unpacked environments with their archives; 1 if one differs"
    )
    verify.add_argument("keys", nargs="*", metavar="KEY", help="as shown by `list` [all]")
    prune = commands.add_parser("prune", parents=[common], help="remove unpacked environments that no server uses")
    prune.add_argument("--unused-for", type=_days, default=0.0, metavar="DAYS", help="only if unused this long [0]")
    prune.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    run = commands.add_parser(
        "run",
        parents=[common],
        usage="pybackend env run [--model DIR] [--environment-cache-directory DIR] ARCHIVE_OR_DIRECTORY -- COMMAND [ARGUMENT]...",
        help="run a command in an environment, with --model in the sandbox of a model",
    )
    run.add_argument(
        "--model", type=Path, metavar="DIR", help="directory of a model: its sandbox [outside of any sandbox]"
    )
    run.add_argument("--config", metavar="JSON", help="the model's configuration [config.pbtxt in its directory]")
    run.add_argument("path", type=Path, metavar="ARCHIVE_OR_DIRECTORY")
    return parser


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of days, such as 30 or 0.5")
    return days


def run_env(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    own, program = divided(arguments)
    given = make_parser().parse_args(own)
    directory = given.environment_cache_directory
    cache = EnvironmentCache((directory or default_cache_directory()).absolute())
    if given.command == "run":
        return _run(cache, given, program)
    if program:
        raise UsageError("Only `pybackend env run` takes a command after --", make_parser().format_usage())
    commands: dict[str, Callable[[EnvironmentCache, argparse.Namespace], Outcome]] = {
        "list": _list,
        "inspect": _inspect,
        "verify": _verify,
        "prune": _prune,
    }
    status, document, lines = commands[given.command](cache, given)
    print_text(json.dumps(document, indent=2) if given.json else "\n".join(lines))
    return status


# list


def _list(cache: EnvironmentCache, _given: argparse.Namespace) -> Outcome:
    rows = [_row(entry) for entry in cache.entries()]
    if not rows:
        return 0, rows, [f"no environment is unpacked in {cache.directory}"]
    table = [
        (
            row["key"][:_KEY_CHARACTERS],
            row["python"],
            _megabytes(row["total_bytes"]),
            _ago(row["used"]),
            row["state"],
            row["source"],
        )
        for row in rows
    ]
    headings = ("KEY", "PYTHON", "SIZE", "USED", "STATE", "ARCHIVE")
    return 0, rows, table_lines([headings, *table], left=len(headings))


def _row(entry: CacheEntry) -> dict[str, Any]:
    mark = entry.mark
    python = ""
    if mark is not None:
        try:
            python = find_interpreter(entry.prefix, entry.key).describe()
        except ModelEnvironmentError:
            python = "none"
    return {
        "key": entry.key,
        "prefix": str(entry.prefix),
        "python": python,
        "total_bytes": mark.total_bytes if mark else 0,
        "used": entry.used_s,
        "state": _state(entry),
        "source": mark.source if mark else "",
    }


def _state(entry: CacheEntry) -> str:
    if entry.mark is None:
        return "being unpacked" if entry.in_use else "incomplete"
    return "in use" if entry.in_use else "unused"


# inspect


def _inspect(cache: EnvironmentCache, given: argparse.Namespace) -> Outcome:
    path = given.path.absolute()
    if not os.path.exists(path) and any(entry.key.startswith(str(given.path)) for entry in cache.entries()):
        path = _chosen(cache, [str(given.path)])[0].prefix
    found = inspect_environment(path)
    cached = any(entry.key == found.key and entry.mark for entry in cache.entries())
    effect = cache.records.hook_effect(found.key or path.name) if cached or path.parent == cache.directory else None
    lines = _inspection_lines(found, effect, cached=cached)
    document = {**found.to_document(), "cached": cached, "hook_variables": None if effect is None else effect.names}
    return (1 if found.refusal else 0), document, lines


def _inspection_lines(found: Inspection, effect: HookEffect | None, *, cached: bool) -> list[str]:
    interpreter = found.interpreter
    manifest = interpreter.manifest if interpreter else None
    facts = [("size", f"{found.files} files, {_megabytes(found.total_bytes)}")]
    if found.key:
        facts.insert(0, ("archive", f"{_megabytes(found.archive_bytes)}, key {found.key}"))
        facts.append(("unpacked here", "yes" if cached else "no"))
    if interpreter is not None:
        facts.append(("python", interpreter.describe()))
        facts.append(("platform", ", ".join(filter(None, (interpreter.platform, manifest.libc if manifest else "")))))
        slow = "nothing: its models start slower; `pybackend pack` compiles"
        facts.append(("compiled", f"{found.compiled_files} modules" if found.compiled_files else slow))
    if manifest is not None and manifest.created_by:
        facts.append(("packed by", manifest.created_by))
    if found.hooks:
        known = "unknown until a server has run them" if effect is None else ", ".join(effect.names) or "nothing"
        facts.append(("hooks", f"{', '.join(found.hooks)}; they set: {known}"))
    facts.append(("usable here", f"no: {found.refusal}" if found.refusal else "yes"))
    facts.append(("packages", str(len(found.packages))))
    packages = [
        f"    {package.name} {package.version}" + (f" ({package.source})" if package.source else "")
        for package in found.packages
    ]
    return [str(found.path), *(f"  {name:<14} {text}" for name, text in facts), *packages]


# verify


def _verify(cache: EnvironmentCache, given: argparse.Namespace) -> Outcome:
    lines, results = [], []
    for entry in _chosen(cache, given.keys):
        differences = _differences(cache, entry)
        results.append({"key": entry.key, "prefix": str(entry.prefix), "differences": differences})
        lines.append(f"{entry.key[:_KEY_CHARACTERS]}  {'differs' if differences else 'as it was unpacked'}")
        lines += [f"  {text}" for text in differences[:_MOST_DIFFERENCES]]
        if len(differences) > _MOST_DIFFERENCES:
            lines.append(f"  and {len(differences) - _MOST_DIFFERENCES} more")
    failed = any(result["differences"] for result in results)
    if failed:
        lines.append("`pybackend env prune` removes unused environments; the next load of a model unpacks them again")
    return (1 if failed else 0), results, lines or [f"no environment is unpacked in {cache.directory}"]


def _differences(cache: EnvironmentCache, entry: CacheEntry) -> list[str]:
    inventory = cache.records.inventory(entry.key)
    if entry.mark is None or inventory is None:
        return [] if entry.in_use else ["it is incomplete"]
    return inventory.differences(entry.prefix, contents=True)


def _chosen(cache: EnvironmentCache, keys: Sequence[str]) -> list[CacheEntry]:
    entries = cache.entries()
    if not keys:
        return entries
    chosen = []
    for key in keys:
        matching = [entry for entry in entries if entry.key.startswith(key)]
        if len(matching) != 1:
            count = "no" if not matching else "more than one"
            raise ModelEnvironmentError(f"{count} environment in {cache.directory} has a key that begins with '{key}'")
        chosen += matching
    return chosen


# prune


def _prune(cache: EnvironmentCache, given: argparse.Namespace) -> Outcome:
    removed, failed = [], []
    before_s = time.time() - given.unused_for * _DAY_S
    for entry in cache.entries():
        if entry.in_use or (entry.mark is not None and entry.used_s > before_s):
            continue
        try:
            if given.dry_run or cache.remove(entry.key):
                removed.append(entry)
        except OSError as error:
            failed.append(f"{entry.prefix}: {error.strerror}")
    if not given.dry_run:
        SpecificationCache(cache).clear_abandoned()
    total_bytes = sum(entry.mark.total_bytes for entry in removed if entry.mark)
    lines = [f"{entry.key[:_KEY_CHARACTERS]}  {entry.mark.source if entry.mark else 'incomplete'}" for entry in removed]
    lines.append(f"{'would remove' if given.dry_run else 'removed'} {len(removed)}, {_megabytes(total_bytes)}")
    lines += [f"cannot remove {text}" for text in failed]
    document = {"removed": [entry.key for entry in removed], "bytes": total_bytes, "failed": failed}
    return (1 if failed else 0), document, lines


# run


def _run(cache: EnvironmentCache, given: argparse.Namespace, program: Sequence[str]) -> int:
    """Run a program in an environment, which stays in use until the program ends."""
    if not program:
        raise UsageError("Write the command after --: `pybackend env run env.tar.gz -- python -V`", "")
    # Late: the other commands need none of this.
    from pybackend.environment.provider import EnvironmentProvider
    from pybackend.gpus import find_gpus
    from pybackend.process.bundle import stage_bundle
    from pybackend.process.confined_program import run_confined
    from pybackend.process.start import process_variables
    from pybackend.sandbox.sandbox import Sandbox
    from pybackend.sandbox.shell_runner import ShellRunner
    from pybackend.settings import SandboxSettings

    path = given.path.absolute()
    sandbox = Sandbox(SandboxSettings(), (), stage_bundle(), cache_places(cache.directory.parent))
    try:
        held = EnvironmentProvider(cache, None, ShellRunner(sandbox).run).open(path, threading.Event())
        model = None if given.model is None else _sandbox_of(given, sandbox, held.environment)
        variables = process_variables(held.environment)
        if model is not None:
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides what Ctrl-C does
                return run_confined(model, sandbox.places.bundle, program, variables, find_gpus().access("MODEL", 0))
            finally:
                held.release()
    finally:
        sandbox.close()
    held.keep_over_exec()
    try:
        os.execvpe(program[0], list(program), variables)  # noqa: S606  the user's command, without a shell
    except OSError as error:
        raise ModelEnvironmentError(f"cannot run '{program[0]}' in {path}: {error.strerror}") from None


def _sandbox_of(given: argparse.Namespace, sandbox: Sandbox, environment: Environment) -> ModelSandbox | None:
    """The sandbox in which a server would run the named model; None if its configuration switches that off."""
    from pybackend.modelconfig.loader import load_policy
    from pybackend.modelconfig.options import sandbox_options_of
    from pybackend.sandbox.model_sandbox import ReachableFiles, sandbox_of

    directory = given.model.absolute()
    config = load_policy(directory, config_json=given.config)
    files = ReachableFiles(directory, directory, environment.python, environment, keeps_home=True)
    return sandbox_of(sandbox, config.name, sandbox_options_of(config, directory), files, config.source)


# Formatting


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _ago(when_s: float) -> str:
    minutes = max(0, time.time() - when_s) / 60
    if minutes < 2:
        return "just now"
    if minutes < 120:
        return f"{minutes:.0f} minutes ago"
    return f"{minutes / 60:.0f} hours ago" if minutes < 48 * 60 else f"{minutes / 60 / 24:.0f} days ago"
