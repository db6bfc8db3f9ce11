"""The steps of an ensemble as a drawing: the models that a request passes, their tensors, and the time that each has taken lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from pybackend_tools.console.frame import Page, heading, link, number

_QUIET = "no requests yet"


class Steps:
    """The drawing. Steps stand in the order in which their inputs come to be; those beside each other run at once."""

    def __init__(self, page: Page, config: Mapping[str, Any]) -> None:
        self._page = page
        self._times: list[tuple[str, Any]] = []
        names = [each["name"] for each in config.get("input", ())]
        heading("Steps")
        with ui.element("ol").classes("steps"):
            _tensors("request", names)
            for row in _ordered(config["ensemble_scheduling"].get("step", ()), set(names)):
                with ui.element("li").classes("step-row"):
                    for step in row:
                        self._draw(step)
            _tensors("answer", [each["name"] for each in config.get("output", ())])

    def _draw(self, step: Mapping[str, Any]) -> None:
        model = step["model_name"]
        with ui.element("div").classes("step"):
            link(model, self._page.href("/model", name=model)).style("font-weight:600")
            ui.label(f"takes {_pairs(step.get('input_map', {}), 'from')}").classes("soft small")
            ui.label(f"gives {_pairs(step.get('output_map', {}), 'as')}").classes("soft small")
            self._times.append((model, ui.label(_QUIET).classes("small")))

    @property
    def models(self) -> list[str]:
        """The models of the steps, each once."""
        return list(dict.fromkeys(model for model, _ in self._times))

    def refresh(self) -> None:
        """The times of the last look."""
        for model, label in self._times:
            row = self._page.watch.row(model, "")
            if row is None or row.state != "READY":
                label.text = "not ready"
            elif row.execute_ms is not None:
                label.text = f"{number(row.requests_per_s)} requests/s, waits {number(row.queue_ms, 2)} ms, computes {number(row.execute_ms, 2)} ms"


def _ordered(steps: Sequence[Mapping[str, Any]], known: set[str]) -> list[list[Mapping[str, Any]]]:
    """The steps by rows: the inputs of a row come from the rows above it."""
    rows, left = [], list(steps)
    while left:
        row = [step for step in left if set(step.get("input_map", {}).values()) <= known] or left
        rows.append(row)
        left = [step for step in left if step not in row]
        known = known | {tensor for step in row for tensor in step.get("output_map", {}).values()}
    return rows


def _pairs(mapping: Mapping[str, str], word: str) -> str:
    return ", ".join(own if own == tensor else f"{own} {word} {tensor}" for own, tensor in mapping.items())


def _tensors(title: str, names: Sequence[str]) -> None:
    with ui.element("li").classes("step-row"):
        ui.label(f"{title}: {', '.join(names)}").classes("soft")
