"""``pybackend analyze``: searches the configuration of models under load."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pybackend.cli.command_line import SILENT, parse_serve_flags, visited, visited_arguments
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.flag_values import MOST_FRONT_ENDS, absolute
from pybackend.cli.output import divided, print_text
from pybackend.errors import PybackendError, ServerError
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.ports import free_ports
from pybackend.repository.layout import scan_repositories
from pybackend.runner import Serve
from pybackend.settings import EXIT_INTERRUPTED, Settings
from pybackend_addons.ray.cluster import follower
from pybackend_client.connection import Connection, control_path, model_path
from pybackend_tools.analyzer.analysis import Analysis, AnalysisResults, flag_of, imported_optuna, read_results
from pybackend_tools.analyzer.candidates import Space, candidate_of, edited
from pybackend_tools.analyzer.goal_flags import add_goal_flags, delays_us, goal_of, number, numbers
from pybackend_tools.analyzer.measurement import Load
from pybackend_tools.analyzer.page import write_whole
from pybackend_tools.analyzer.report import advice, diffs, verdict, write_report
from pybackend_tools.analyzer.requests import target_of
from pybackend_tools.analyzer.servers import TIMEOUT_S, Servers

_RESULTS = "results.json"
_MOST_CLIENTS = 4096


def make_parser() -> CommandParser:
    """The parser of ``analyze``'s arguments."""
    cores = os.cpu_count() or 1
    parser = CommandParser(
        prog="pybackend analyze",
        usage="pybackend analyze DIRECTORY MODEL... [--FLAG[=VALUE]]... [-- SERVE_FLAG...]",
        description="Serves the models here, measures them under load with different numbers of instances, sizes of batches, delays and "
        "threads, and writes a report with the three best configurations. An ensemble gets requests, and its steps are varied.",
        epilog="Flags after -- are for the server that it starts. Nothing in the repository changes without --write. exit status: 0 if "
        "a report was written, 1 if not",
    )
    add = parser.add_argument
    add("repository", type=Path, metavar="DIRECTORY", help="directory of models")
    add("models", nargs="+", metavar="MODEL", help="these get requests, all at once")
    add_goal_flags(parser, "throughput")
    add(
        "--clients",
        type=numbers(1),
        default=numbers(1)("1..64"),
        metavar="RANGE",
        help="clients that each wait for their answer [1..64]",
    )
    add(
        "--rate",
        type=number,
        default=0.0,
        metavar="N",
        help="so many requests per second instead, at random moments, on at most the last of --clients connections",
    )
    add(
        "--data",
        type=Path,
        metavar="FILE",
        help="values of inputs in JSON as perf_analyzer reads them, or a trace file with tensors [random values]",
    )
    add(
        "--instances",
        type=numbers(1),
        default=numbers(1)(f"1..{2 * cores}"),
        metavar="RANGE",
        help=f"[1..{2 * cores}: twice the cores]",
    )
    add(
        "--batch-sizes",
        type=numbers(1),
        default=[],
        metavar="RANGE",
        help="max_batch_size with dynamic batches, of models that take batches [2..64]",
    )
    add(
        "--delays",
        type=delays_us,
        default=[0, 500, 2000],
        metavar="TIMES",
        help="how long batches may wait for more requests [0,500us,2ms]",
    )
    add("--preferred", type=numbers(1), default=[], metavar="RANGE", help="preferred_batch_size [none]")
    add(
        "--threads",
        type=numbers(1),
        default=numbers(1)(f"1..{cores}"),
        metavar="RANGE",
        help=f"of an instance, for backends with a parameter for it [1..{cores}]",
    )
    add(
        "--front-ends",
        type=numbers(0),
        default=[],
        metavar="RANGE",
        help="of the server, which is started again for each number: a flag of serve, not of config.pbtxt [not varied]",
    )
    add("--trials", type=int, default=20, metavar="N", help="configurations to measure [20]")
    add(
        "--output",
        type=Path,
        default=Path("analysis"),
        metavar="DIRECTORY",
        help="for report.html, results.csv and results.json [analysis]",
    )
    add("--resume", action="store_true", help="go on with the results in the output directory")
    add("--compare", type=Path, metavar="FILE", help="results.json of an earlier analysis, for the report")
    add("--write", action="store_true", help="write the best configuration into config.pbtxt if it is reliably better")
    return parser


def run_analyze(arguments: Sequence[str], serve: Serve) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    own, flags = divided(arguments)
    given = parser.parsed(own)
    if given.trials < 1 or not given.window or given.clients[-1] > _MOST_CLIENTS:
        parser.refuse_with(f"--trials and --window must be above 0, and --clients at most {_MOST_CLIENTS}")
    if given.front_ends and (given.front_ends[-1] > MOST_FRONT_ENDS or given.objective == "cost"):
        parser.refuse_with(
            f"--front-ends must be at most {MOST_FRONT_ENDS}, and cannot vary with --objective=cost, which counts the processes of models alone"
        )
    imported_optuna()
    other = read_results(given.compare) if given.compare is not None else None
    task = _Task(given, flags)
    try:
        visited(serve, task.settings, task.run)
    except KeyboardInterrupt:
        task.forget_interrupted()
        if task.results.outcomes:
            task.report(other)
            sys.stderr.write("interrupted: the same command with --resume goes on\n")
        return EXIT_INTERRUPTED
    except PybackendError:
        if task.results.outcomes:
            task.report(other)
        raise
    task.report(other)
    if given.write and task.results.is_better:
        task.write()
    return 0


class _Task:
    """An analysis: what it needs of the repository, and what it finds.

    ``configs``: complete configurations of the models that are varied, by name. ``texts``: of their files.
    """

    def __init__(self, given: argparse.Namespace, flags: Sequence[str]) -> None:
        self._given = given
        self._directories = scan_repositories([absolute(given.repository)]).models
        for name in given.models:
            if name not in self._directories:
                known = ", ".join(self._directories) or "no model"
                raise ServerError(f"{given.repository} has no model '{name}'; it has {known}")
        (self._metrics_port,) = free_ports("127.0.0.1")
        own = [*SILENT, "--allow-metrics=true", "--metrics-address=127.0.0.1", f"--metrics-port={self._metrics_port}"]
        loaded = [f"--load-model={name}" for name in given.models]
        arguments = visited_arguments(given.repository, [*own, *loaded], flags)
        self.settings: Settings = parse_serve_flags(arguments)
        self._command = [*follower(), sys.executable, "-m", "pybackend", "serve", *arguments]
        self.configs: dict[str, Any] = {}
        self.texts: dict[str, str] = {}
        varied = {
            "rate_per_s": given.rate,
            "instances": given.instances,
            "batch_sizes": given.batch_sizes,
            "delays_us": given.delays,
            "preferred": given.preferred,
            "threads": given.threads,
            "front_ends": given.front_ends,
            "clients": given.clients,
            "window_s": given.window,
            "cores": os.cpu_count() or 1,
            "flags": list(flags),
        }
        self.results = AnalysisResults(sorted(given.models), varied, goal_of(given))
        self._path = given.output / _RESULTS
        self._resume()
        try:
            given.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ServerError(f"cannot write into {given.output}: {error.strerror}") from None

    def _resume(self) -> None:
        if not self._given.resume:
            if self._path.exists():
                raise ServerError(
                    f"{self._path} has the results of an analysis: --resume goes on with it, --output=DIRECTORY begins another one elsewhere"
                )
            return
        earlier = read_results(self._path)
        now = self.results
        if (earlier.models, earlier.settings, earlier.goal) != (now.models, now.settings, now.goal):
            raise ServerError(
                f"{self._path} is of an analysis with other models, limits or flags: resume it with these"
            )
        self.results = earlier

    def run(self, url: str) -> None:
        """Analyse the models of a server. Raises PybackendError if that is impossible."""
        given = self._given
        connection = Connection(url, TIMEOUT_S)
        for name in given.models:
            self._add(connection, name)
        present = {name: candidate_of(config) for name, config in self.configs.items()}
        if self.results.present and self.results.present != present:
            raise ServerError(
                f"{self._path} is of other configurations of these models: begin another analysis with --output"
            )
        self.results.present = present
        targets = [target_of(connection, name, given.data) for name in given.models]
        space = Space(given.instances, given.batch_sizes, given.delays, given.preferred, given.threads)
        load = Load(given.clients, given.rate, given.window)
        front_ends = [self.settings.front_ends, *given.front_ends] if given.front_ends else []
        if front_ends:  # the models run in one server at a time
            for name in given.models:
                connection.post_json(f"{control_path(name)}/unload", {"parameters": {"unload_dependents": True}})
        metrics_url = f"http://127.0.0.1:{self._metrics_port}"
        with Servers(url, metrics_url, targets, list(self.configs), self._command) as servers:
            search = Analysis(servers, load, self.results, self.configs, space, front_ends, self._path, print_text)
            search.run(given.trials)

    def report(self, other: AnalysisResults | None) -> None:
        """Write the report, and print what matters of it. ``other``: an earlier analysis to compare with."""
        results = self.results
        page = write_report(self._given.output, results, self.configs, self.texts, other)
        if results.is_better:
            best = results.ranked()[0]
            print_text("\n".join(filter(None, diffs(best, self.configs, self.texts).values())))
            if flag := flag_of(best):
                print_text(f"the flag of the server: pybackend serve {flag}")
        print_text("\n".join([*advice(results), verdict(results), f"report: {page}"]))

    def forget_interrupted(self) -> None:
        """Leave out a trial that has failed because the server ended."""
        outcomes = self.results.outcomes
        if outcomes and outcomes[-1].failed:
            outcomes.pop()
            self.results.write(self._path)

    def _add(self, connection: Connection, name: str) -> None:
        """Vary a model; of an ensemble, its steps."""
        if name in self.configs:
            return
        config = connection.get(f"{model_path(name, '')}/config")
        steps = config.get("ensemble_scheduling", {}).get("step", ())
        for step in steps:
            self._add(connection, step["model_name"])
        if not steps:
            self.configs[name] = config
            file = self._directories[name] / CONFIG_FILENAME
            try:
                self.texts[name] = file.read_text(encoding="utf-8") if file.exists() else ""
            except (OSError, UnicodeDecodeError) as error:
                raise ServerError(f"cannot read {file}: {error}") from None

    def write(self) -> None:
        """Write the best configuration into the files. Raises ServerError if one cannot be written."""
        best = self.results.ranked()[0]
        for name, candidate in best.choice.items():
            file = self._directories[name] / CONFIG_FILENAME
            text = edited(self.texts[name], self.configs[name], candidate)
            if text != self.texts[name]:
                write_whole(file, text)
                print_text(f"written: {file}")
        if flag := flag_of(best):
            print_text(f"not written, since it belongs to the server: pybackend serve {flag}")
