"""What an analysis says of its measurements."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from pybackend.errors import ServerError
from pybackend_tools.analyzer.analysis import AnalysisResults, TriedChoice, read_results
from pybackend_tools.analyzer.candidates import Candidate
from pybackend_tools.analyzer.goal import Goal
from pybackend_tools.analyzer.measurement import Answers, Inside, Rung
from pybackend_tools.analyzer.report import csv_text, html_text, verdict

NAME = "<script>alert(1)</script>"
TEXT = 'backend: "python"\nmax_batch_size: 8\n# <b>\n'
CONFIG = {"backend": "python", "max_batch_size": 8, "instance_group": [{"count": 1, "kind": "KIND_CPU"}]}


def rung(per_s: float, p99_ms: float = 10, clients: int = 1, memory_bytes: int = 10_000_000) -> Rung:
    answers = Answers(per_s, per_s, per_s, is_steady=True, p50_ms=p99_ms / 2, p90_ms=p99_ms, p99_ms=p99_ms)
    parts = {"queue": 1.0, "compute_input": 0.1, "compute_infer": 2.0, "compute_output": 0.1}
    return Rung(clients, {NAME: answers}, {NAME: Inside(parts, {"1": 5, "4": 2}, {"<i>": 3})}, memory_bytes, 0.5)


def results(goal: Goal | None = None, **changes: object) -> AnalysisResults:
    better = TriedChoice({NAME: Candidate(2, 8)}, rungs=[rung(100), rung(190, 20, 2)])
    failed = TriedChoice({NAME: Candidate(4, 8)}, rungs=[], failed="<u>too many</u>")
    outcomes = [TriedChoice({}, rungs=[rung(100)]), better, failed]
    present = {NAME: Candidate(1, 8)}
    settings = {"rate_per_s": 0, "cores": 2}
    return replace(AnalysisResults([NAME], settings, goal or Goal(), present, outcomes), **changes)  # type: ignore[arg-type]


def test_measurements_in_turns_decide() -> None:
    apart = results(compared=[(100, 190), (101, 180)])
    assert apart.is_better
    assert apart.gain == pytest.approx(185 / 100.5)
    assert "2 instances, no dynamic batches: 190 inferences/s with 2 clients" in verdict(apart)
    noisy = results(compared=[(100, 190), (101, 99)])
    assert not noisy.is_better
    assert "within the noise" in verdict(noisy)
    little = results(compared=[(100, 102), (101, 103)])
    assert not little.is_better


def test_limits_decide() -> None:
    limited = results(Goal(p99_ms=15))
    best = limited.goal.best(limited.ranked()[0].rungs)
    assert best is not None
    assert best.p99_ms == 10
    none = results(Goal(least_per_s=1000))
    assert not none.ranked()
    assert verdict(none).startswith("No configuration keeps the limits. The closest one is 2 instances")
    small = results(Goal(memory_bytes=1e6))
    assert not small.ranked()


def test_of_nearly_equal_ones_that_with_less_memory_is_best() -> None:
    large = TriedChoice({NAME: Candidate(8, 8)}, rungs=[rung(195, memory_bytes=80_000_000)])
    found = results()
    found.outcomes.append(large)
    assert found.ranked()[0].choice == {NAME: Candidate(2, 8)}


def test_results_survive_their_file(tmp_path: Path) -> None:
    found = results(Goal("latency", p99_ms=20), compared=[(1.0, 2.0)])
    found.write(tmp_path / "results.json")
    assert read_results(tmp_path / "results.json") == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 2}'])
def test_a_file_of_something_else_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ServerError, match=r"x\.json"):
        read_results(tmp_path / "x.json")


def test_strangers_words_are_text_on_the_page() -> None:
    found = results(compared=[(100, 190)])
    page = html_text(found, {NAME: CONFIG}, {NAME: TEXT}, results())
    for words in (NAME, "<i>", "<u>", "<b>"):
        assert words not in page
    assert "&lt;u&gt;too many" in page
    assert '<span class="add">+  count: 2</span>' in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("https://matplotlib.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "")
    assert page.count("<svg") == 4


def test_the_table_has_each_measurement() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(results()))))
    assert [row["infer_per_s"] for row in rows] == ["100.00", "100.00", "190.00", ""]
    assert rows[-1]["failed"] == "<u>too many</u>"
