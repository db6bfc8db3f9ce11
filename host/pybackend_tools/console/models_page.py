"""The first page: all models with their states and figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nicegui import ui

from pybackend_client.figures import Row
from pybackend_tools.console.frame import Page, heading, paragraph

_NUMBER = "value => value === null || value === undefined ? '-' : value.toLocaleString('en', {maximumFractionDigits: %d, minimumFractionDigits: %d})"


def _column(name: str, label: str, digits: int | None = None, classes: str = "") -> dict[str, Any]:
    column: dict[str, Any] = {
        "name": name,
        "label": label,
        "field": name,
        "sortable": True,
        "align": "left" if digits is None else "right",
    }
    if digits is not None:
        column[":format"] = _NUMBER % (digits, digits)
    return {**column, "classes": classes, "headerClasses": "wide" if "wide" in classes else ""}


_COLUMNS = [
    _column("model", "Model", classes="model"),
    _column("version", "Version", classes="wide"),
    _column("state", "State"),
    {**_column("instances", "Instances", 0, "wide"), ":format": "undefined"},
    _column("waiting", "Waiting", 0, "wide"),
    _column("requests_per_s", "Requests/s", 1, "wide"),
    _column("execute_p50_ms", "p50 ms", 2, "wide"),
    _column("execute_p99_ms", "p99 ms", 2, "wide"),
    _column("megabytes", "MB", 0, "wide"),
    {**_column("failures", "Failed", 0, "wide")},
    {"name": "act", "label": "", "field": "model", "align": "right"},
]

_PAGE = 25

_ENSEMBLE = "ensemble: its steps have instances, times and memory"

_MODEL_CELL = """<q-td :props="props"><a :href="props.row.href">{{ props.row.model }}</a>
  <div v-if="props.row.note" class="note" :title="props.row.note">{{ props.row.note }}</div></q-td>"""
_STATE_CELL = """<q-td :props="props"><span :class="['state', /^[A-Z]+$/.test(props.row.state) ? props.row.state : '']">{{
  props.row.state || 'not loaded' }}</span></q-td>"""
_INSTANCES_CELL = """<q-td :props="props"><span v-if="!props.row.instances">-</span><span v-else
  :title="props.row.busy + ' busy, ' + (props.row.instances_ready - props.row.busy) + ' idle, ' + (props.row.instances - props.row.instances_ready) + ' restarting'"
  >{{ props.row.instances_ready }}/{{ props.row.instances }}</span></q-td>"""
_ACT_CELL = """<q-td :props="props" style="white-space:nowrap"><template v-if="props.row.first">
  <q-btn flat round dense size="sm" :icon="props.row.is_up ? 'refresh' : 'play_arrow'" :disable="props.row.is_up && !!props.row.refusal"
    :title="props.row.is_up ? props.row.refusal || 'Reload' : 'Load'"
    :aria-label="(props.row.is_up ? 'Reload ' : 'Load ') + props.row.model"
    @click="() => $parent.$emit('act', [props.row.model, props.row.is_up ? 'reload' : 'load'])" />
  <q-btn flat round dense size="sm" icon="stop" :disable="!props.row.is_up || !!props.row.refusal" :title="props.row.refusal || 'Unload'" :aria-label="'Unload ' + props.row.model"
    @click="() => $parent.$emit('act', [props.row.model, 'unload'])" /></template></q-td>"""


def show(page: Page) -> None:
    """Build the page."""
    with page.frame("", "/"):
        with ui.element("div").classes("head"):
            heading("Models", 1)
            total = ui.label().classes("soft").props('role="status"')
            ui.element("div").classes("gap")
            search = ui.input(placeholder="Search").props(
                'outlined dense clearable debounce="150" aria-label="Search models"'
            )
            search.on("keydown.escape", lambda: search.set_value(""))
        table = ui.table(columns=_COLUMNS, rows=[], row_key="id", pagination={"rowsPerPage": _PAGE, "sortBy": "model"})
        table.classes("list").props('flat binary-state-sort :rows-per-page-options="[25, 100, 0]" aria-label="Models"')
        for name, cell in (
            ("model", _MODEL_CELL),
            ("state", _STATE_CELL),
            ("instances", _INSTANCES_CELL),
            ("act", _ACT_CELL),
        ):
            table.add_slot(f"body-cell-{name}", cell)
        table.add_slot("no-data", '<span class="soft">No model matches.</span>')
        table.bind_filter_from(search, "value", lambda text: text or "")
        table.on("act", lambda event: page.control(str(event.args[0]), str(event.args[1])))
        empty = ui.element("div").classes("card")
        with empty:
            heading("This server has no models yet")
            paragraph(
                "A directory of models is served by `pybackend serve DIRECTORY`. `pybackend new my_model` writes a first one."
            ).classes("soft")
        metrics = ui.label().classes("soft small")
        advice = ui.label().classes("soft small advice").props('role="status"')

        def refresh() -> None:
            watch = page.watch
            advice.text = ". ".join(map(str, watch.look.advice))
            rows = _rows(page)
            if rows != table.rows:
                table.rows = rows
            looked = watch.look.sample is not None
            table.visible, empty.visible = bool(rows), looked and not rows
            search.visible = len(rows) > 5
            table.props["hide-bottom"] = len(rows) <= _PAGE
            ready = sum(row.state == "READY" for row in watch.look.rows)
            total.text = (
                f"{ready} of {len(rows)} ready" if looked else ("" if watch.trouble else "Asking the server ...")
            )
            metrics.text = (
                f"No instances, queues and quantiles: {watch.metrics_trouble}"
                if looked and watch.metrics_trouble
                else ""
            )

        page.on_look(refresh)


def _rows(page: Page) -> list[dict[str, Any]]:
    sample = page.watch.look.sample
    reasons = {} if sample is None else sample.reasons
    rows, seen = [], set()
    for row in page.watch.look.rows:
        rows.append(_cells(page, row, reasons.get((row.model, row.version), ""), is_first=row.model not in seen))
        seen.add(row.model)
    return rows


def _cells(page: Page, row: Row, reason: str, *, is_first: bool) -> dict[str, Any]:
    cells = asdict(row)
    keep = (
        "model",
        "version",
        "state",
        "instances",
        "instances_ready",
        "waiting",
        "requests_per_s",
        "execute_p50_ms",
        "execute_p99_ms",
        "failures",
    )
    rounded = {name: round(value, 3) if isinstance(value := cells[name], float) else value for name in keep}
    return {
        **rounded,
        "id": f"{row.model}/{row.version}",
        "href": page.href("/model", name=row.model, version=row.version),
        "busy": row.running or 0,
        "megabytes": None if row.resident_bytes is None else round(row.resident_bytes / 1e6),
        "note": reason.strip()[:300] or (_ENSEMBLE if row.state == "READY" and row.instances == 0 else ""),
        "is_up": row.state in {"READY", "LOADING"},
        "first": is_first,
        "refusal": page.watch.control_refusal,
    }
