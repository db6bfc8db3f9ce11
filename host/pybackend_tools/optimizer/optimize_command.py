"""``pybackend optimize``: searches the form of one model that serves it best, and makes its entry."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from pybackend.cli.command_line import SILENT, visited, visited_settings
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.model_names import check_new_name
from pybackend.cli.output import divided, print_error, print_text, table_lines, terminated, wrapped
from pybackend.errors import PybackendError, ServerError
from pybackend.flag import integer
from pybackend.ports import free_ports
from pybackend.runner import Serve
from pybackend.settings import EXIT_INTERRUPTED
from pybackend_tools.analyzer.goal_flags import add_goal_flags, goal_of, number
from pybackend_tools.analyzer.measurement import Load
from pybackend_tools.importing.detection import detect
from pybackend_tools.importing.entry import EntryPath, StagedEntry, place_of
from pybackend_tools.importing.import_command import add_entry_flags, base_of, check_trust, derived_name
from pybackend_tools.importing.kinds import FoundModel
from pybackend_tools.importing.run import ImportRun
from pybackend_tools.optimizer.accuracy import Metric, Tolerance
from pybackend_tools.optimizer.forms import LEFT_OUT, UNCALIBRATED, Form, forms_of
from pybackend_tools.optimizer.report import CHOSEN, HEADS, WORSE, rows_of, write_report
from pybackend_tools.optimizer.results import NAME, Demands, SearchResults
from pybackend_tools.optimizer.search import Search, Wishes

_EPILOG = """\
examples:
  pybackend optimize resnet.onnx
  pybackend optimize churn.skops --data rows.npz --calibration rows.npz --metric score.py --metric-loss 0.01
  pybackend optimize encoder.pt2 --forms onnxruntime,openvino --clients 8 --p99 50ms

exit status: 0 if an entry was written, or --no-entry asked for none; 1 if not
"""


def make_parser() -> CommandParser:
    """The parser of ``optimize``'s arguments."""
    parser = CommandParser(
        prog="pybackend optimize",
        usage="pybackend optimize FILE_OR_DIRECTORY [--FLAG[=VALUE]]... [-- SERVE_FLAG...]",
        description="Tries the runtimes and conversions that are installed for one model, each in a separate process in the sandbox, compares "
        "the answers with those of the framework alone, measures speed and memory, writes a report, and makes an entry of a model "
        "repository from the best form.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", type=Path, metavar="FILE_OR_DIRECTORY", help="the model")
    add_entry_flags(parser)
    _add_own_flags(parser)
    add_goal_flags(parser, "median")
    return parser


def _add_own_flags(parser: CommandParser) -> None:
    add = parser.add_argument
    add("--force", action="store_true", help="replace the entry and the report if they exist")
    add("--no-entry", action="store_true", help="write the report only")
    add("--forms", metavar="NAMES", help="try these only, such as onnxruntime,openvino, and the usual form [all]")
    add("--data", type=Path, metavar="FILE", help="requests to compare and to measure with: JSON as perf_analyzer reads it, an .npz file "
        "with an array for each input, or a trace file with tensors [random values]")  # fmt: skip
    add(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="typical requests, likewise, by which forms in int8 are scaled [no int8 and bf16]",
    )
    add(
        "--metric",
        metavar="FILE.py",
        help="a file with a function metric(inputs, outputs), more of which is better; FILE.py:NAME for another name",
    )
    add(
        "--metric-loss",
        type=number,
        default=0.0,
        metavar="X",
        help="by how much the metric may be lower than the original's [0]",
    )
    add("--tolerance", type=_tolerance, default=Tolerance(1e-3, 1e-4), metavar="LARGEST,MEAN", help="differences from the original that are "
        "allowed, relative to values above 1 [1e-3,1e-4]")  # fmt: skip
    add("--low-precision-tolerance", type=_tolerance, default=Tolerance(0.1, 0.02), metavar="LARGEST,MEAN", help="likewise for int8 and bf16; "
        "with --metric, that alone decides about these [0.1,0.02]")  # fmt: skip
    add("--clients", type=integer(1), default=1, metavar="N", help="clients that each wait for their answer [1]")
    add(
        "--timeout",
        type=number,
        default=300.0,
        metavar="SECONDS",
        help="how long a form may take, with its conversion [300]",
    )
    add(
        "--output",
        type=Path,
        metavar="DIRECTORY",
        help="for report.html, results.csv and results.json [NAME-optimization]",
    )


def _tolerance(text: str) -> Tolerance:
    try:
        largest, _, mean = text.partition(",")
        found = Tolerance(float(largest), float(mean or largest))
    except ValueError:
        found = Tolerance(-1.0, -1.0)
    if not (found.largest >= 0 and found.mean >= 0):
        raise argparse.ArgumentTypeError(f"'{text}' is no pair of numbers such as 1e-3,1e-4")
    return found


def run_optimize(arguments: Sequence[str], serve: Serve) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    own, flags = divided(arguments)
    given = parser.parsed(own)
    if not (given.window and given.timeout):
        parser.refuse_with("--window and --timeout must be above 0")
    found = detect(given.path)
    name = given.name or derived_name(found, parser)
    check_new_name(name, parser)
    check_trust(found, trusts=given.trust_pickle)
    forms = _chosen_forms(forms_of(found, os.cpu_count() or 1, calibrates=given.calibration is not None), given.forms)
    metric = None if given.metric is None else Metric(given.metric)
    place = place_of(given.repository, name, None, force=given.force or given.no_entry)
    output = _made_output(given.output or Path(f"{name}-optimization"), force=given.force)
    results = SearchResults(
        str(given.path),
        found.kind.title,
        goal_of(given),
        Demands(given.tolerance, given.low_precision_tolerance, given.metric_loss),
        f"{given.clients} client{'s' if given.clients > 1 else ''} on {os.cpu_count()} cores",
        left_out={**LEFT_OUT, **({} if given.calibration else UNCALIBRATED)},
    )
    signal.signal(signal.SIGTERM, terminated)
    with StagedEntry(place) as entry:
        (metrics_port,) = free_ports("127.0.0.1")
        own_flags = [*SILENT, "--allow-metrics=true", "--metrics-address=127.0.0.1", f"--metrics-port={metrics_port}"]
        settings = visited_settings(entry.directory, own_flags, flags)
        environments = {name: each.get("environment", "") for name, each in settings.backend_settings.items()}
        load = Load((given.clients,), window_s=given.window)
        base = base_of(given, parser)
        wishes = Wishes(base, given.data, given.calibration, metric, given.timeout, load, environments)
        search = Search(found, forms, entry, wishes, results, output, print_text)
        task = _Task(search, f"http://127.0.0.1:{metrics_port}", makes_entry=not given.no_entry)
        try:
            visited(serve, settings, task.run)
        except KeyboardInterrupt:
            search.forget_interrupted()
            _report(results, output)
            return EXIT_INTERRUPTED
        except PybackendError:
            _report(results, output)
            raise
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, terminated)
        if task.has_entry:
            entry.commit()
            results.entry = str(place.model)
    try:
        _report(results, output)
    except ServerError as error:
        raise ServerError(f"{error}. {results.entry or 'No entry'} was written") from None
    return _ended(results, place, makes_entry=not given.no_entry)


def _chosen_forms(forms: list[Form], wanted: str | None) -> list[Form]:
    """The forms of these names, after the usual one. Raises ServerError for any other name."""
    if wanted is None:
        return forms
    names = {each.strip() for each in wanted.split(",")}
    unknown = sorted(names - {form.name for form in forms})
    if unknown:
        raise ServerError(
            f"--forms: there is no form '{unknown[0]}'; there are {', '.join(form.name for form in forms)}"
        )
    return [forms[0], *(form for form in forms[1:] if form.name in names)]


def _made_output(output: Path, *, force: bool) -> Path:
    if (output / NAME).exists() and not force:
        raise ServerError(
            f"{output / NAME} has the results of another search: --force replaces them, --output=DIRECTORY names another place"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=output).close()  # rather than to fail after the first measurement
    except OSError as error:
        raise ServerError(f"cannot write into {output}: {error.strerror}") from None
    return output


class _Task:
    """A search, and then the entry of the form that it has chosen."""

    def __init__(self, search: Search, metrics_url: str, *, makes_entry: bool) -> None:
        self._search = search
        self._metrics_url = metrics_url
        self._makes_entry = makes_entry
        self.has_entry = False

    def run(self, url: str) -> None:
        """Search, and lay out the entry. Raises PybackendError if that is impossible."""
        search = self._search
        search.run(url, self._metrics_url)
        chosen = search.results.chosen
        if chosen is None or not self._makes_entry:
            return
        files: FoundModel = search.files_of(chosen.form)
        base, wishes = search.configuration_of(chosen.form), search.wishes
        entry = ImportRun(
            files, search.entry, base, search.sample_for(chosen.form), False, wishes.limit_s, wishes.environments
        )
        entry.lay_out()
        entry.visit(url)
        self.has_entry = True


def _report(results: SearchResults, output: Path) -> None:
    """Write the report, and print its table. Without a form that was measured there is none."""
    if not any(outcome.rungs for outcome in results.outcomes):
        return
    page = write_report(output, results)
    rows = list(rows_of(results))
    measured = [row[:-1] for row in rows if any(row[1:-1])]
    columns = [place for place, cells in enumerate(zip(*measured, strict=True)) if any(cells)]
    lines = table_lines([[row[place] for place in columns] for row in [HEADS, *measured]], 1)
    for title, *_, result in rows:
        if result not in {CHOSEN, WORSE}:
            lines += wrapped(result, f"{title}: ", "  ")
    print_text("\n".join(["", *lines]))
    print_text(f"\n{results.verdict()}\nreport: {page}")


def _ended(results: SearchResults, place: EntryPath, *, makes_entry: bool) -> int:
    if results.chosen is None:
        print_error(
            "error: no form can be served with these tolerances and limits: the report has the reasons. No entry was written"
        )
        return 1
    if makes_entry:
        print_text(
            f"\nwritten: {place.model}, with {results.chosen.form.title}: {results.chosen.tensors}\npybackend serve {place.repository}"
        )
    return 0
