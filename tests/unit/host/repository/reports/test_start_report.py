"""What the log says of the models at the end of the start."""

import logging
from pathlib import Path

import pytest

from pybackend.repository.entry import ModelStatus
from pybackend.repository.reports import LONGEST_TABLE, StartReport
from pybackend.settings import DebugSettings, HttpSettings, Settings

OTHERS = (
    "--exit-on-error=false serves the others; the manual's page 'Troubleshooting' has such reasons by their first words"
)


def ready(count: int) -> list[ModelStatus]:
    return [ModelStatus(f"m{number:03}", "1", "READY") for number in range(count)]


def failed(name: str, reason: str, version: str = "1") -> ModelStatus:
    return ModelStatus(name, version, "UNAVAILABLE", reason)


@pytest.fixture
def said(caplog, monkeypatch):
    """Logs a report and returns its lines as (level, text)."""
    monkeypatch.setattr(logging.getLogger("pybackend"), "propagate", True)
    caplog.set_level(logging.DEBUG, "pybackend")

    def said(
        rows: list[ModelStatus], *, with_summary: bool = True, is_told: bool = True, **settings
    ) -> list[tuple[str, str]]:
        every = {"repositories": (Path("models"),), "http": HttpSettings(), **settings}
        StartReport(rows, 3.14, is_told=is_told).log(Settings(**every), with_summary=with_summary)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    return said


def test_one_model(said):
    assert said(ready(1)) == [("INFO", "m000 | 1 | READY"), ("INFO", "1 of 1 model is ready in 3.1 s")]


def test_a_screenful_of_models_has_a_table(said):
    lines = said(ready(LONGEST_TABLE))
    assert len(lines) == LONGEST_TABLE + 1
    assert lines[-1] == ("INFO", f"{LONGEST_TABLE} of {LONGEST_TABLE} models are ready in 3.1 s")


def test_a_long_reason_ends_between_two_words(said):
    reason = f"{'x' * 990} /models/a/1/model.onnx is damaged"
    assert said([failed("a", reason)], is_told=False)[-1] == (
        "ERROR",
        f"0 of 1 model is ready in 3.1 s; failed: a ({'x' * 990} ...)",
    )


def test_many_models_have_one_line(said):
    assert said(ready(1000)) == [("INFO", "1000 of 1000 models are ready in 3.1 s")]


def test_one_failure_among_many_is_in_that_line(said):
    rows = [*ready(99), failed("m50", "Internal: ValueError: no weights\n  File model.py")]
    text = "99 of 100 models are ready in 3.1 s; failed: m50 (Internal: ValueError: no weights)"
    assert said(rows) == [("ERROR", text)]
    assert StartReport(rows, 3.14).fatal() == (
        f"creating server: Internal - failed to load all models: {text}. {OTHERS}"
    )


def test_several_failures_have_a_line_each(said):
    rows = [*ready(97), failed("x", "Internal: a"), failed("y", "Internal: b", "2"), ModelStatus("y", "3", "READY")]
    lines = ["97 of 99 models are ready in 3.1 s; failed:", "  x: Internal: a", "  y version 2: Internal: b"]
    assert said(rows) == [("ERROR", line) for line in lines]
    assert StartReport(rows, 3.14).fatal().splitlines() == [
        f"creating server: Internal - failed to load all models: {lines[0]}",
        *lines[1:],
        OTHERS,
    ]


def test_reasons_that_were_just_told_are_not_repeated(said):
    rows = [*ready(1), failed("x", "Internal: a"), failed("y", "Internal: b", "2"), ModelStatus("y", "3", "READY")]
    text = "1 of 3 models are ready in 3.1 s; failed, as said above: x, y version 2"
    table = [
        "m000 | 1 | READY",
        "x    | 1 | UNAVAILABLE: Internal: a",
        "y    | 2 | UNAVAILABLE: Internal: b",
        "y    | 3 | READY",
    ]
    assert said(rows) == [*(("INFO", line) for line in table), ("ERROR", text)]
    assert StartReport(rows, 3.14).fatal() == (
        f"creating server: Internal - failed to load all models: {text}. {OTHERS}"
    )


def test_reasons_that_nobody_was_told_are_in_the_summary(said):
    lines = said([*ready(1), failed("x", "Internal: a")], is_told=False)
    assert lines[-1] == ("ERROR", "1 of 2 models are ready in 3.1 s; failed: x (Internal: a)")


def test_a_name_cannot_forge_lines():
    rows = [failed("a\nb\u2028", "c\u202ed"), failed("e", "")]
    assert StartReport(rows, 1, is_told=False).fatal().count("\n") == 3
    assert StartReport(rows, 1).fatal().count("\n") == 0


def test_the_summary_is_left_to_the_last_words(said):
    assert said([failed("bad", "Internal: x")], with_summary=False) == [("INFO", "bad | 1 | UNAVAILABLE: Internal: x")]


def test_no_model_at_all(said):
    ((level, text),) = said([])
    assert level == "WARNING"
    assert text.startswith("Found no model in models. ")


def test_a_model_to_debug_that_is_not_there(said):
    assert said(ready(1), debug=DebugSettings(("other",)))[0] == (
        "WARNING",
        "--debug other: no model of this name is loaded.",
    )
