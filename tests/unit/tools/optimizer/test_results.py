"""Which form is chosen, and why others are not."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pybackend_tools.analyzer.goal import Goal
from pybackend_tools.analyzer.measurement import Answers, Rung
from pybackend_tools.optimizer.accuracy import Difference, Tolerance
from pybackend_tools.optimizer.forms import Form
from pybackend_tools.optimizer.report import csv_text, html_text
from pybackend_tools.optimizer.results import Demands, SearchResults, TriedForm

NAME = "<script>alert(1)</script>"


def outcome(name: str, p50_ms: float, largest: float = 0.0, *, is_exact: bool = True, **more: Any) -> TriedForm:
    answers = Answers(1000 / p50_ms, 1, 1, is_steady=True, p50_ms=p50_ms, p90_ms=p50_ms, p99_ms=p50_ms)
    difference = Difference(largest, largest / 10, "y")
    form = Form(name, f"form {name}", "onnxruntime", is_exact=is_exact)
    return TriedForm(
        form, difference=difference, rungs=[Rung(1, {"m": answers}, {}, 10_000_000, 0.5)], tensors="x", **more
    )


def results(*outcomes: TriedForm, goal: Goal | None = None, compared: Any = ()) -> SearchResults:
    demands = Demands(Tolerance(1e-3, 1e-4), Tolerance(0.1, 0.02), 0.01)
    return SearchResults(
        NAME, "an ONNX model", goal or Goal("median"), demands, "1 client", 8, {}, list(outcomes), compared
    )


def chosen(found: SearchResults) -> str:
    assert found.chosen is not None
    return found.chosen.form.name


def test_a_form_must_be_reliably_better_in_turns() -> None:
    forms = outcome("usual", 2), outcome("fast", 1)
    assert chosen(results(*forms, compared=[(500, 900), (510, 950)])) == "fast"
    noisy = results(*forms, compared=[(500, 900), (950, 940)])
    assert chosen(noisy) == "usual"
    assert noisy.verdict().startswith("No form is reliably better than form usual: measured in turns with it")
    assert noisy.verdict().endswith(" times as good, which is within the noise of this machine.")
    assert results(*forms, compared=[(900, 500), (910, 950)]).verdict().endswith(" times as good.")
    assert chosen(results(*forms)) == "usual"


def test_forms_that_differ_are_not_chosen() -> None:
    found = results(
        outcome("usual", 2), outcome("wrong", 1, 0.05), outcome("int8", 1.5, 0.05, is_exact=False), compared=[(1, 2)]
    )
    assert chosen(found) == "int8"
    assert found.reason(found.outcomes[1]) == "output 'y' differs by up to 0.05, more than 0.001"


def test_a_metric_decides_about_low_precision_alone_and_about_others_too() -> None:
    usual, good, bad = (
        outcome("usual", 3, metric=0.9),
        outcome("good", 1, 0.5, is_exact=False, metric=0.895),
        outcome("bad", 1, 0.05, is_exact=False, metric=0.88),
    )
    found = results(usual, good, bad, outcome("exact", 1, 0.5, metric=0.9), compared=[(1, 2)])
    assert chosen(found) == "good"
    assert [found.reason(each) for each in found.outcomes] == [
        "",
        "",
        "its metric is 0.88, and the original's is 0.9",
        "output 'y' differs by up to 0.5, more than 0.001",
    ]


def test_limits_hold_for_the_original_too() -> None:
    found = results(outcome("usual", 2), outcome("fast", 1), goal=Goal("median", p99_ms=1.5))
    assert chosen(found) == "fast"
    none = results(outcome("usual", 2), outcome("fast", 1), goal=Goal("median", p99_ms=0.5))
    assert none.chosen is None
    assert none.verdict() == "No form keeps the tolerances and the limits."


def test_the_report_names_every_form_with_the_reason_and_escapes_strangers_text(tmp_path: Path) -> None:
    failed = TriedForm(Form("crash", "form crash", "openvino"), failed="<b>signal 6</b>")
    found = results(outcome("usual", 2), outcome("wrong", 1, 0.05), outcome("endless", 1, float("inf")), failed)
    found.left_out = {"TensorRT": "needs a GPU"}
    page = html_text(found)
    assert "<script>" not in page
    assert "<th>metric</th>" not in page, "nobody has asked for one"
    assert "<th>metric</th>" in html_text(results(outcome("usual", 2, metric=0.9)))
    assert "&lt;b&gt;signal 6&lt;/b&gt;" in page
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert [(row["form"], row["result"]) for row in rows] == [
        ("form usual", "chosen"),
        ("form wrong", "output 'y' differs by up to 0.05, more than 0.001"),
        ("form endless", "output 'y' differs by up to inf, more than 0.001"),
        ("form crash", "<b>signal 6</b>"),
        ("TensorRT", "needs a GPU"),
    ]
    found.write(tmp_path)
    document = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert document["outcomes"][2]["difference"] == {"largest": None, "mean": None, "output": "y"}
    assert document["chosen"] == "usual"
    assert document["outcomes"][1]["reason"] == "output 'y' differs by up to 0.05, more than 0.001"


@pytest.mark.parametrize("outcomes", [(), (TriedForm(Form("usual", "form usual", "fil"), failed="no"),)])
def test_a_search_that_measured_nothing_has_a_report_too(outcomes: Any) -> None:
    found = results(*outcomes)
    assert found.chosen is None
    assert html_text(found)
