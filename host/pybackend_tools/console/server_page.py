"""The page of the server: its health, its processes, the flags in force and its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from pybackend.errors import PybackendError
from pybackend_tools.console.checks import Checks
from pybackend_tools.console.frame import Page, facts, figures, heading, megabytes, number, paragraph
from pybackend_tools.console.log_view import LogView

_PROCESSES: list[dict[str, Any]] = [
    {"name": "name", "label": "Process", "field": "name", "align": "left", "sortable": True, "classes": "model"},
    {"name": "pid", "label": "Number", "field": "pid", "align": "right", "sortable": True},
    {"name": "mb", "label": "MB", "field": "mb", "align": "right", "sortable": True},
    {"name": "cpu_s", "label": "CPU seconds", "field": "cpu_s", "align": "right", "sortable": True},
]
_SETTINGS: list[dict[str, Any]] = [
    {"name": "name", "label": "Flag", "field": "name", "align": "left", "sortable": True},
    {"name": "value", "label": "Value", "field": "value", "align": "left", "classes": "model"},
    {"name": "source", "label": "From", "field": "source", "align": "left", "sortable": True},
]
_DEFAULT = "default"


class ServerPage:
    """The page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._lag_before: tuple[float, float] | None = None

    def show(self) -> None:
        """Build the page."""
        with self._page.frame("Server", "/server"):
            with ui.element("div").classes("head"):
                heading("Server", 1)
                self._health: Any = ui.label().classes("state").props('role="status"')
            self._numbers = figures(
                [
                    (name, "-")
                    for name in (
                        "Models ready",
                        "Requests/s",
                        "Event loop delay",
                        "CPU of the machine",
                        "Memory of the machine",
                    )
                ]
            )
            self._about: Any = ui.element("section").classes("card")
            with ui.element("section").classes("stack").style("gap:.6rem"):
                heading("Processes")
                self._processes_note: Any = ui.label().classes("soft")
                self._processes: Any = _table(_PROCESSES, "pid", "mb", "Processes")
            with ui.element("section").classes("stack").style("gap:.6rem"):
                with ui.element("div").classes("line"):
                    heading("Flags in force")
                    self._all: Any = ui.checkbox("with defaults", on_change=self._show_settings)
                    self._all.props["aria-label"] = "Also show flags that have their default"
                self._settings_note: Any = ui.label().classes("soft")
                self._settings: Any = _table(_SETTINGS, "name", "name", "Flags in force")
            Checks(self._page)
            with ui.element("section").classes("card"):
                heading("Log")
                LogView(self._page)
            self._rows: list[dict[str, Any]] = []
            self._page.on_look(self._refresh)

    async def _refresh(self) -> None:
        watch = self._page.watch
        look = watch.look
        ready = not watch.trouble and await self._is_ready()
        self._health.text = "not answering" if watch.trouble else "ready" if ready else "not ready"
        self._health.classes(replace=f"state {'UNAVAILABLE' if watch.trouble else 'READY' if ready else 'LOADING'}")
        if look.sample is None:
            return
        server = look.sample.server
        texts = (
            f"{sum(row.state == 'READY' for row in look.rows)} of {len(look.rows)}",
            number(sum(row.requests_per_s or 0 for row in look.rows)),
            number(self._lag_ms(server), 2, "ms"),
            number(100 * server["nv_cpu_utilization"], 0, "%") if "nv_cpu_utilization" in server else "-",
            f"{megabytes(server.get('nv_cpu_memory_used_bytes'))} of {megabytes(server.get('nv_cpu_memory_total_bytes'))}",
        )
        for element, text in zip(self._numbers, texts, strict=True):
            element.text = text
        self._about.clear()
        with self._about:
            facts([
                ("Name", str(look.server.get("name", "-"))), ("Version", str(look.server.get("version", "-"))),
                ("Address", watch.server.url), ("Extensions", ", ".join(map(str, look.server.get("extensions", []))) or "-"),
                *(_gpu_fact(uuid, of) for uuid, of in sorted(look.sample.gpus.items())),
            ])  # fmt: skip
            if watch.metrics_trouble:
                paragraph(f"No metrics: {watch.metrics_trouble}").classes("soft")
        await self._ask_for_processes()
        await self._ask_for_settings()

    async def _is_ready(self) -> bool:
        try:
            return bool(await self._page.ask("/v2/health/ready", "ready"))
        except PybackendError:
            return False

    def _lag_ms(self, server: Mapping[str, float]) -> float | None:
        """The mean delay of the event loop since the last look, None without metrics."""
        total_s = server.get("pybackend_event_loop_lag_seconds_sum")
        count = server.get("pybackend_event_loop_lag_seconds_count")
        if total_s is None or count is None:
            return None
        before_s, before = self._lag_before or (0.0, 0.0)
        self._lag_before = (total_s, count)
        return 1000 * (total_s - before_s) / (count - before) if count > before else 0.0

    async def _ask_for_processes(self) -> None:
        try:
            rows = await self._page.ask("/v2/diagnostics/processes", "processes")
        except PybackendError as error:
            self._processes_note.text, self._processes.visible = str(error), False
            return
        self._processes_note.text, self._processes.visible = "Pages that several processes share count for each.", True
        self._processes.rows = [{**row, "mb": round(row["resident_bytes"] / 1e6)} for row in rows]

    async def _ask_for_settings(self) -> None:
        try:
            self._rows = await self._page.ask("/v2/diagnostics/settings", "settings")
        except PybackendError as error:
            self._settings_note.text, self._settings.visible = str(error), False
            return
        self._show_settings()

    def _show_settings(self) -> None:
        rows = [row for row in self._rows if self._all.value or row["source"] != _DEFAULT]
        self._settings_note.text = "" if rows else "All flags have their defaults."
        self._settings.visible = bool(rows)
        if rows != self._settings.rows:
            self._settings.rows = rows


def _table(columns: list[dict[str, Any]], key: str, order: str, label: str) -> Any:
    table = ui.table(
        columns=columns,
        rows=[],
        row_key=key,
        pagination={"rowsPerPage": 10, "sortBy": order, "descending": order == "mb"},
    )
    table.classes("list").props('flat dense binary-state-sort :rows-per-page-options="[10, 50, 0]"')
    table.props["aria-label"] = label
    return table


def _gpu_fact(uuid: str, figures_of: Mapping[str, float]) -> tuple[str, str]:
    """The name of a GPU and its figures, "-" for one that it lacks."""
    rate, watts = figures_of.get("nv_gpu_utilization"), figures_of.get("nv_gpu_power_usage")
    used, total = (figures_of.get(f"nv_gpu_memory_{which}_bytes") for which in ("used", "total"))
    busy = number(None if rate is None else 100 * rate, 0, "%")
    return uuid, f"{busy} busy, {megabytes(used)} of {megabytes(total)}, {number(watts, 0, 'W')}"
