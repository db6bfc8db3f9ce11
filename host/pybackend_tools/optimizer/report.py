"""The report of a search for the best form: a page that needs no other file, and its table as CSV and for a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from html import escape
from pathlib import Path

from pybackend_tools.analyzer.page import html_page, html_table, write_pages
from pybackend_tools.optimizer.results import SearchResults, TriedForm

_MB = 1e6
CHOSEN, WORSE = "chosen", "not better than the chosen one"
HEADS = (
    "form",
    "inferences/s",
    "p50 ms",
    "p99 ms",
    "memory MB",
    "cores used",
    "start s",
    "file MB",
    "largest difference",
    "mean difference",
    "metric",
    "result",
)


def rows_of(results: SearchResults) -> Iterator[list[str]]:
    """The table, without its head: the chosen form, the others that could be, and those that cannot, each with the reason."""
    ranked = results.ranked()
    others = [each for each in results.outcomes if each not in ranked]
    ordered = sorted([*ranked, *others], key=lambda each: (each is not results.chosen, bool(results.reason(each))))
    for outcome in ordered:
        yield [outcome.form.title, *_figures(outcome), _result(outcome, results)]
    for title, reason in results.left_out.items():
        yield [title, *[""] * (len(HEADS) - 2), reason]


def _figures(outcome: TriedForm) -> list[str]:
    if not outcome.rungs or outcome.difference is None:
        return [""] * (len(HEADS) - 2)
    (rung,) = outcome.rungs
    (answers,) = rung.answers.values()
    return [
        f"{rung.infer_per_s:.0f}{'' if rung.is_steady else ' (noisy)'}",
        f"{answers.p50_ms:.2f}",
        f"{answers.p99_ms:.2f}",
        f"{rung.memory_bytes / _MB:.0f}",
        f"{rung.cpu_cores:.2f}",
        f"{outcome.start_s:.1f}",
        f"{outcome.file_bytes / _MB:.2f}",
        f"{outcome.difference.largest:.2g}",
        f"{outcome.difference.mean:.2g}",
        "" if outcome.metric is None else f"{outcome.metric:.4g}",
    ]


def _result(outcome: TriedForm, results: SearchResults) -> str:
    if outcome is results.chosen:
        return CHOSEN
    original = results.original.tensors
    tensors = f"; other tensors: {outcome.tensors}" if outcome.tensors not in {"", original} else ""
    return (results.reason(outcome) or WORSE) + tensors


def csv_text(results: SearchResults) -> str:
    """The table, one form a line."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEADS)
    table.writerows(rows_of(results))
    return text.getvalue()


def html_text(results: SearchResults) -> str:
    """The page."""
    table = list(rows_of(results))
    places = [
        place for place, cells in enumerate(zip(*table, strict=True)) if any(cells)
    ]  # without those that are empty
    rows = (
        f'<tr>{"".join(f"<td>{escape(cells[place])}</td>" for place in places[:-1])}<td class="text">{escape(cells[-1])}</td></tr>'
        for cells in table
    )
    parts = [f"<p><strong>{escape(results.verdict())}</strong></p>", f"<p>{escape(_conditions(results))}</p>"]
    if results.entry:
        parts.append(f"<p>Written: {escape(results.entry)}</p>")
    return html_page(f"Forms of {results.source}", [*parts, html_table([HEADS[place] for place in places], rows)])


def _conditions(results: SearchResults) -> str:
    exact, low = results.demands.exact, results.demands.low_precision
    return (
        f"{results.source} is {results.kind}. Searched for {results.goal}, under the load of {results.load}. Answers to {results.requests} "
        f"requests were compared with those of the framework alone: numbers may differ by {exact.largest:g} at most and {exact.mean:g} on "
        f"average, in int8 and bf16 by {low.largest:g} and {low.mean:g}, relative to values above 1. Memory and cores are those of the "
        "model's process; times are those that clients see."
    )


def write_report(directory: Path, results: SearchResults) -> Path:
    """Write all files of the report. Returns the page's path; raises ServerError if that is impossible."""
    results.write(directory)
    return write_pages(directory, html_text(results), csv_text(results))
