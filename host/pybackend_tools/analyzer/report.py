"""The report of an analysis: a page that needs no other file, and its table as CSV."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pybackend_tools.analyzer.analysis import AnalysisResults, TriedChoice, described, flag_of
from pybackend_tools.analyzer.candidates import edited
from pybackend_tools.analyzer.measurement import Rung
from pybackend_tools.analyzer.page import html_page, html_table, write_pages

SHOWN = 3
"""The best configurations, which the report shows with their differences."""

_MB = 1e6
_REASONS = {
    "full": "they were full",
    "preferred": "they had a preferred size",
    "delay": "their delay was over",
    "idle": "an instance was free and took what waited",
}
_PARTS = {
    "queue": "waits",
    "compute_input": "inputs",
    "compute_infer": "execute",
    "compute_output": "outputs",
}


def diffs(outcome: TriedChoice, configs: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, str]:
    """The changes of config.pbtxt that make a choice, by model; empty for a file that stays as it is."""
    found = {}
    for name, candidate in outcome.choice.items():
        old, new = texts[name], edited(texts[name], configs[name], candidate)
        lines = difflib.unified_diff(
            old.splitlines(), new.splitlines(), f"{name}/config.pbtxt", f"{name}/config.pbtxt", lineterm=""
        )
        found[name] = "\n".join(lines)
    return found


def verdict(results: AnalysisResults) -> str:
    """The finding in a sentence or two."""
    ranked = results.ranked()
    if not ranked:
        closest = max(
            results.outcomes, key=lambda each: results.goal.score(each.rungs) if each.rungs else float("-inf")
        )
        rung = min(closest.rungs, key=results.goal.misses)
        return f"No configuration keeps the limits. The closest one is {described(closest)}: {rung}."
    best = results.goal.best(ranked[0].rungs)
    assert best is not None
    if results.is_better and results.compared:
        return f"The best configuration is {described(ranked[0])}: {best}, {results.gain:.2f} times as good as the present one."
    if results.is_better:
        return f"The best configuration is {described(ranked[0])}: {best}. The present one misses the limits."
    if results.compared and results.gain > 1:
        return (
            "No configuration is reliably better than the present one: measured in turns with it, the best one was "
            f"{results.gain:.2f} times as good, which is within the noise of this machine."
        )
    return "No configuration is better than the present one."


def advice(results: AnalysisResults) -> Sequence[str]:
    """Which models could share a process and save by it, as the last load with the present configuration showed."""
    return results.outcomes[0].rungs[-1].advice


def csv_text(results: AnalysisResults) -> str:
    """All measurements, one a line."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    heads = "configuration clients infer_per_s p50_ms p90_ms p99_ms steady memory_mb cpu_cores keeps_limits failed"
    table.writerow(heads.split())
    for outcome in results.outcomes:
        name = described(outcome)
        for rung in outcome.rungs:
            slowest = max(rung.answers.values(), key=lambda each: each.p99_ms)
            figures = (rung.infer_per_s, slowest.p50_ms, slowest.p90_ms, slowest.p99_ms)
            kept = not results.goal.misses(rung)
            rest = (rung.is_steady, f"{rung.memory_bytes / _MB:.0f}", f"{rung.cpu_cores:.2f}", kept, "")
            table.writerow([name, rung.clients, *(f"{each:.2f}" for each in figures), *rest])
        if outcome.failed:
            table.writerow([name, *[""] * 9, outcome.failed])
    return text.getvalue()


def html_text(
    results: AnalysisResults, configs: Mapping[str, Any], texts: Mapping[str, str], other: AnalysisResults | None = None
) -> str:
    """The page. ``other``: an earlier analysis to compare with."""
    title = f"Analysis of {', '.join(results.models)}"
    best = results.ranked()[:SHOWN]
    parts = [
        f"<p><strong>{escape(verdict(results))}</strong></p>",
        f"<p>{escape(_conditions(results))}</p>",
        *(f"<p>{escape(text)}</p>" for text in advice(results)),
        *(
            f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
            for drawing, caption in _plots(results, best)
        ),
        "<h2>The best configurations</h2>",
        *(_section(number, outcome, results, configs, texts) for number, outcome in enumerate(best, 1)),
        *([] if other is None else _comparison(results, other)),
        "<h2>All configurations</h2>",
        _table(results),
    ]
    return html_page(title, parts)


def _conditions(results: AnalysisResults) -> str:
    rate = results.settings["rate_per_s"]
    load = f"{rate:g} requests/s at random moments" if rate else "clients that each wait for their answer"
    return (
        f"Searched for {results.goal}, under the load of {load}, on "
        f"{results.settings['cores']} cores, which server, models and load shared. Times are those that clients see."
    )


def _section(
    number: int, outcome: TriedChoice, results: AnalysisResults, configs: Mapping[str, Any], texts: Mapping[str, str]
) -> str:
    best = results.goal.best(outcome.rungs)
    assert best is not None
    text = f"<h3>{number}. {escape(described(outcome))}</h3><p>{escape(str(best))}</p>"
    for name, diff in diffs(outcome, configs, texts).items():
        lines = [_diff_line(line) for line in diff.splitlines()]
        text += f"<pre>{chr(10).join(lines)}</pre>" if lines else f"<p>{escape(name)}/config.pbtxt stays as it is.</p>"
    if flag := flag_of(outcome):
        text += f"<p>The flag of the server: <code>pybackend serve {flag}</code></p>"
    closed = [(name, each.closed) for name, each in best.inside.items() if each.closed]
    for name, reasons in closed:
        said = ", ".join(
            f"{_REASONS.get(reason, reason)} ({count} batches)"
            for reason, count in sorted(reasons.items(), key=lambda each: -each[1])
        )
        text += f"<p>Why the batches of {escape(name)} did not grow: {escape(said)}.</p>"
    return text


def _diff_line(line: str) -> str:
    kind = {"+": "add", "-": "gone"}.get(line[:1], "")
    return f'<span class="{kind}">{escape(line)}</span>' if kind else escape(line)


def _table(results: AnalysisResults) -> str:
    rows = []
    for outcome in sorted(results.outcomes, key=lambda each: -results.goal.score(each.rungs) if each.rungs else 1e9):
        name = f"<td>{escape(described(outcome))}</td>"
        if outcome.failed:
            rows.append(f'<tr>{name}<td colspan="6" class="text">{escape(outcome.failed)}</td></tr>')
            continue
        rung = _shown_rung(outcome, results)
        slowest = max(rung.answers.values(), key=lambda each: each.p99_ms)
        cells = (
            rung.clients,
            f"{rung.infer_per_s:.0f}{'' if rung.is_steady else ' (noisy)'}",
            f"{slowest.p50_ms:.1f}",
            f"{slowest.p99_ms:.1f}",
            f"{rung.memory_bytes / _MB:.0f}",
            f"{rung.cpu_cores:.2f}",
        )
        rows.append(f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    heads = ("configuration", "clients", "inferences/s", "p50 ms", "p99 ms", "memory MB", "cores used")
    return html_table(heads, rows)


def _shown_rung(outcome: TriedChoice, results: AnalysisResults) -> Rung:
    return results.goal.best(outcome.rungs) or min(outcome.rungs, key=results.goal.misses)


def _comparison(results: AnalysisResults, other: AnalysisResults) -> list[str]:
    rows = []
    for title, each in (("earlier", other), ("now", results)):
        for what, outcome in (("present", each.outcomes[:1]), ("best", each.ranked()[:1])):
            for found in outcome:
                rung = _shown_rung(found, each)
                said = f"{title}, {what}: {described(found)}"
                rows.append(f"<tr><td>{escape(said)}</td><td>{escape(str(rung))}</td></tr>")
    return ["<h2>Compared with the earlier analysis</h2>", f"<table>{''.join(rows)}</table>"]


def _plots(results: AnalysisResults, best: Sequence[TriedChoice]) -> Iterator[tuple[str, str]]:
    """Drawings in SVG, and what they show."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    with mpl.rc_context({"svg.hashsalt": "pybackend", "svg.fonttype": "none", "font.family": "sans-serif"}):
        measured = [each for each in results.outcomes if each.rungs]
        winner = best[0] if best else None

        figure = Figure((9, 4.5), layout="constrained")
        axes = figure.subplots()
        rungs = [rung for outcome in measured for rung in outcome.rungs]
        axes.plot([rung.infer_per_s for rung in rungs], [rung.p99_ms for rung in rungs], ".", color="0.7", label="all")
        front = list(_front(rungs))
        axes.plot(
            [rung.infer_per_s for rung in front],
            [rung.p99_ms for rung in front],
            "--",
            color="0.4",
            label="best of all",
        )
        for outcome, label in ((results.outcomes[0], "present"), (winner, "best")):
            if outcome is not None and (label == "present" or outcome.choice):
                axes.plot([r.infer_per_s for r in outcome.rungs], [r.p99_ms for r in outcome.rungs], "o-", label=label)
        if results.goal.p99_ms != float("inf"):
            axes.axhline(results.goal.p99_ms, color="tab:red", linewidth=1, label="limit")
        axes.set(xlabel="inferences per second", ylabel="99th percentile in ms", yscale="log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(ScalarFormatter())
        axes.legend()
        yield (
            _svg(figure),
            "Throughput and latency: further right and further down is better. Points of a line have more and more clients.",
        )

        figure = Figure((9, 3.5), layout="constrained")
        axes = figure.subplots()
        for outcome in measured:
            rung = _shown_rung(outcome, results)
            colour = "tab:orange" if outcome is winner else "tab:blue" if outcome is results.outcomes[0] else "0.7"
            axes.plot(rung.memory_bytes / _MB, rung.infer_per_s, "o", color=colour)
        axes.set(
            xlabel="memory of the models' processes and front ends in MB",
            ylabel="inferences per second",
            xlim=(0, None),
            ylim=(0, None),
        )
        yield _svg(figure), "Memory and throughput of each configuration: the present one is blue, the best one orange."

        bars = [
            ("present", results.outcomes[0]),
            *((f"best {number}", each) for number, each in enumerate(best, 1) if each.choice),
        ]
        figure = Figure((9, 1 + 0.6 * len(bars) * len(results.present)), layout="constrained")
        axes = figure.subplots()
        names, parts = [], []
        for label, outcome in reversed(bars):
            for name, inside in _shown_rung(outcome, results).inside.items():
                names.append(f"{label}: {name}")
                parts.append(inside.parts_ms)
        left = [0.0] * len(names)
        for part, label in _PARTS.items():
            widths = [each[part] for each in parts]
            axes.barh(names, widths, left=left, label=label)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set(xlabel="ms of an average request on the server")
        axes.legend()
        yield _svg(figure), "Where the time of a request goes on the server."

        sizes = [
            (label, name, inside.batches)
            for label, outcome in bars[:2]
            for name, inside in _shown_rung(outcome, results).inside.items()
        ]
        if any(set(batches) - {"1"} for _, _, batches in sizes):
            figure = Figure((9, 3.5), layout="constrained")
            axes = figure.subplots()
            for label, name, batches in sizes:
                ordered = sorted((int(size), count) for size, count in batches.items())
                axes.plot(
                    [size for size, _ in ordered], [count for _, count in ordered], "o-", label=f"{label}: {name}"
                )
            axes.set(xlabel="requests in a batch", ylabel="executions", ylim=(0, None))
            axes.legend()
            yield _svg(figure), "Sizes of the batches that were executed."


def _front(rungs: Sequence[Rung]) -> Iterator[Rung]:
    """The measurements to which no other is better in both throughput and latency, the fastest first."""
    least = float("inf")
    for rung in sorted(rungs, key=lambda each: -each.infer_per_s):
        if rung.p99_ms < least:
            least = rung.p99_ms
            yield rung


def _svg(figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawing = text.getvalue()
    return drawing[drawing.index("<svg") :]


def write_report(
    directory: Path,
    results: AnalysisResults,
    configs: Mapping[str, Any],
    texts: Mapping[str, str],
    other: AnalysisResults | None,
) -> Path:
    """Write ``report.html`` and ``results.csv``.

    Returns the first one's path; raises ServerError if that is impossible.
    """
    return write_pages(directory, html_text(results, configs, texts, other), csv_text(results))
