"""The page of a model: a form to try it, its figures over time, its configuration and its environment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nicegui import ui

from pybackend.errors import PybackendError
from pybackend_client.connection import model_path
from pybackend_client.figures import Row
from pybackend_tools.console import charts
from pybackend_tools.console.configuration_view import ConfigurationView
from pybackend_tools.console.frame import Page, figures, heading, megabytes, number, paragraph, state
from pybackend_tools.console.log_view import LogView
from pybackend_tools.console.steps import Steps
from pybackend_tools.console.trace_view import TraceView
from pybackend_tools.console.try_it import TryIt

_REASONS = {"full": "full", "preferred": "preferred size", "delay": "delay over", "idle": "instance idle"}


_FIGURES = ("Instances", "Waiting", "Requests/s", "p50", "p99", "Failed", "Memory", "Restarts")
_ENSEMBLE_FIGURES = ("Steps ready", "Requests/s", "Mean time", "Failed")


class ModelPage:
    """The page of one version of a model."""

    def __init__(self, page: Page, model: str, version: str) -> None:
        self._page, self._model, self._version = page, model, version
        self._loaded = False  # the form was made
        self._loading = False
        self._steps: Steps | None = None  # of an ensemble
        page.watch.history(model, version)

    def show(self) -> None:
        """Build the page."""
        title = f"{self._model}, version {self._version}" if self._version else self._model
        with self._page.frame(title, "/model"):
            with ui.element("div").classes("head"):
                heading(self._model, 1)
                with ui.element("div") as self._state:
                    state("")
                ui.label(f"version {self._version}" if self._version else "").classes("soft")
                ui.element("div").classes("gap")
                with ui.element("div").classes("line"):
                    self._acts = {action: self._act(action) for action in ("load", "reload", "unload")}
            self._reason: Any = ui.label().classes("banner").props('role="status"')
            with ui.element("div") as self._figures:
                self._numbers: Any = figures([(name, "-") for name in _FIGURES])
            with ui.element("div"):
                with ui.tabs().props("dense align=left no-caps outside-arrows mobile-arrows") as tabs:
                    for name in ("Try it", "Figures", "Traces", "Configuration", "Log"):
                        ui.tab(name)
                with ui.tab_panels(tabs, value="Try it").props("keep-alive").props('animated="false"'):
                    with ui.tab_panel("Try it") as self._try:
                        ui.label("The form comes when the model is ready.").classes("soft")
                    with ui.tab_panel("Figures"):
                        self._steps_card: Any = ui.element("section").classes("card")
                        self._steps_card.visible = False
                        self._charts = _Charts()
                    with ui.tab_panel("Traces"):
                        TraceView(self._page, self._model, lambda: bool(tabs.value == "Traces"))
                    with ui.tab_panel("Configuration") as self._configuration:
                        ui.label("The configuration comes when the model is ready.").classes("soft")
                    with ui.tab_panel("Log"), ui.element("section").classes("card"):
                        LogView(self._page, self._model)
            self._page.on_look(self._refresh)

    def _act(self, action: str) -> Any:
        return ui.button(action.capitalize(), on_click=lambda: self._page.control(self._model, action)).props(
            "flat dense"
        )

    @property
    def _is_up(self) -> bool:
        row = self._page.watch.row(self._model, self._version)
        return row is not None and row.state in {"READY", "LOADING"}

    async def _refresh(self) -> None:
        watch = self._page.watch
        row = watch.row(self._model, self._version)
        if watch.look.sample is None:
            return
        self._show_row(row)
        self._charts.show(self._page, self._model, self._version)
        if self._steps is not None:
            self._steps.refresh()
        if not self._loaded and not self._loading and row is not None and row.state == "READY":
            self._loading = True
            await self._fill()
            self._loading = False

    def _show_row(self, row: Row | None) -> None:
        watch = self._page.watch
        self._state.clear()
        with self._state:
            state("" if row is None else row.state)
        for action, button in self._acts.items():
            button.visible = (action != "load") == self._is_up
            refusal = watch.control_refusal if action != "load" else ""
            button.enabled = not refusal
            button.props["title"] = refusal or action.capitalize()
        reason = ""
        if row is None:
            known = any(each.model == self._model for each in watch.look.rows)
            reason = f"The server knows no {'such version of this' if known else 'such'} model."
        elif row.state != "READY" and watch.look.sample is not None:
            reason = watch.look.sample.reasons.get((row.model, row.version), "").strip()
        self._reason.text, self._reason.visible = reason, bool(reason)
        row = row or Row(self._model, self._version, "")
        for element, text in zip(self._numbers, self._texts(row), strict=True):
            element.text = text

    def _texts(self, row: Row) -> tuple[str, ...]:
        """The figures, in their order."""
        if self._steps is not None:
            ready = [self._page.watch.row(name, "") for name in self._steps.models]
            return (
                f"{sum(each is not None and each.state == 'READY' for each in ready)}/{len(ready)}",
                number(row.requests_per_s), number(row.request_ms, 2, "ms"), number(row.failures, 0),
            )  # fmt: skip
        busy = f", {row.running} busy" if row.running else ""
        return (
            f"{row.instances_ready}/{row.instances}{busy}" if row.instances else "-",
            number(row.waiting, 0), number(row.requests_per_s), number(row.execute_p50_ms, 2, "ms"), number(row.execute_p99_ms, 2, "ms"),
            number(row.failures, 0), megabytes(row.resident_bytes), number(row.restarts, 0),
        )  # fmt: skip

    async def _fill(self) -> None:
        """Make the form and the configuration, once the model answers."""
        watch, path = self._page.watch, model_path(self._model, self._version)
        try:
            metadata = await asyncio.to_thread(watch.server.get, path)
        except PybackendError as error:
            self._explain(self._try, str(error))
            return
        config, trouble = await self._config(path)
        self._loaded = True
        self._try.clear()
        try:
            with self._try:
                TryIt(self._page, self._model, self._version, metadata, config)
            if "ensemble_scheduling" in config:
                with self._steps_card:
                    self._steps = Steps(self._page, config)
                self._steps_card.visible = True
                self._charts.show_steps(self._page, self._steps.models)
                self._figures.clear()
                with self._figures:
                    self._numbers = figures([(name, "-") for name in _ENSEMBLE_FIGURES])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._explain(
                self._try, f"The server describes the model in a way that is not of the v2 protocol: {error!r}"
            )
        await ConfigurationView(self._page, self._model, self._version).show(self._configuration, config, trouble)

    def _explain(self, panel: Any, text: str) -> None:
        panel.clear()
        with panel:
            ui.label(text).classes("banner")

    async def _config(self, path: str) -> tuple[dict[str, Any], str]:
        try:
            found = await asyncio.to_thread(self._page.watch.server.get, f"{path}/config")
        except PybackendError as error:
            return {}, str(error)
        return (found, "") if isinstance(found, dict) else ({}, "the server answers in another form")


_PARTS = ("queue_ms", "input_ms", "execute_ms", "output_ms")


def _total_ms(row: Row) -> float | None:
    """The mean time of a request in all parts, None without requests."""
    parts = [getattr(row, part) for part in _PARTS]
    return None if None in parts else sum(parts)


class _Charts:
    """The figures of a version over time, since a page first showed it."""

    def __init__(self) -> None:
        with ui.element("div").classes("cols"):
            with ui.element("section").classes("card"):
                self._rates = charts.time_chart("Requests per second", ["answered", "failed"])
            with ui.element("section").classes("card") as self._parts_card:
                self._parts = charts.time_chart(
                    "Mean time of a request in ms", ["queue", "input", "compute", "output"], stacked=True
                )
            with ui.element("section").classes("card") as self._memory_card:
                self._memory = charts.time_chart("Memory of its processes in MB", ["memory"])
            with ui.element("section").classes("card") as self._queue_card:
                self._queue = charts.time_chart("Requests", ["waiting", "in execute"])
            with ui.element("section").classes("card") as self._sizes_card:
                self._sizes = charts.bar_chart("Executions by batch size, since the load")
            with ui.element("section").classes("card") as self._reasons_card:
                self._reasons = charts.bar_chart("Why batches closed, since the load")
        self._bars: Any = None
        self._steps: Sequence[str] = ()  # the models of an ensemble

    def show_steps(self, page: Page, models: Sequence[str]) -> None:
        """It is an ensemble: its time is that of these models, and it has no processes and no queue."""
        self._steps = models
        self._memory_card.visible = self._queue_card.visible = False
        self._parts_card.clear()
        with self._parts_card:
            self._parts = charts.time_chart("Mean time of each step in ms", models, stacked=True)
            paragraph("An ensemble has no processes: waiting requests and memory are those of its steps.").classes(
                "soft small"
            )

    def show(self, page: Page, model: str, version: str) -> None:
        """The points and bars of the last look."""
        row = page.watch.row(model, version)
        history = list(page.watch.history(model, "" if row is None else row.version))
        times = [moment_s for moment_s, _ in history]
        rows = [each for _, each in history]
        charts.show_points(
            self._rates, times, [[each.requests_per_s for each in rows], [each.failures_per_s for each in rows]]
        )
        if self._steps:
            found = [(model, page.watch.row(model, "")) for model in self._steps]
            histories = [list(page.watch.history(model, each.version if each else "")) for model, each in found]
            common = min(map(len, histories))
            moments = [moment_s for moment_s, _ in histories[0][-common:]] if common else []
            steps = [[_total_ms(each) for _, each in history[-common:]] if common else [] for history in histories]
            charts.show_points(self._parts, moments, steps)
        else:
            charts.show_points(self._parts, times, [[getattr(each, part) for each in rows] for part in _PARTS])
        charts.show_points(
            self._memory, times, [[None if each.resident_bytes is None else each.resident_bytes / 1e6 for each in rows]]
        )
        charts.show_points(self._queue, times, [[each.waiting for each in rows], [each.running for each in rows]])
        sample = page.watch.look.sample
        if row is None or sample is None:
            return
        key = (row.model, row.version)
        batches = sample.statistics.get(key, {}).get("batch_stats", [])
        sizes = [(str(each["batch_size"]), each.get("compute_infer", {}).get("count", 0)) for each in batches]
        reasons = [(_REASONS.get(name, name), count) for name, count in sample.batches.get(key, {}).items()]
        self._sizes_card.visible, self._reasons_card.visible = bool(sizes), bool(reasons)
        if (sizes, reasons) != self._bars:
            self._bars = (sizes, reasons)
            charts.show_bars(self._sizes, sizes)
            charts.show_bars(self._reasons, reasons)
