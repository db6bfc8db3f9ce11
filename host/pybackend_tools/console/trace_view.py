"""The part of a model's page about traces: the calls between models as a drawing, and one request as a waterfall."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nicegui import context, ui

from pybackend.errors import PybackendError
from pybackend_client.connection import model_path
from pybackend_tools.console.frame import Page, heading, link, number, paragraph
from pybackend_tools.console.traces import PARTS, Step, Trace, steps_of, traces_in

_MOST_LISTED, _MOST_ROWS = 30, 100
_SETTINGS = ("trace_level", "trace_rate", "trace_count")
_NO_PLACE = "This server keeps no traces: start it with --trace-config=mode=memory"
_EMPTY = "No request to this model has been traced lately."


class TraceView:
    """The last traces of a model. ``is_shown``: whether anybody sees them; otherwise the server is left alone."""

    def __init__(self, page: Page, model: str, is_shown: Callable[[], bool]) -> None:
        self._page, self._model, self._is_shown = page, model, is_shown
        self._path = f"{model_path(model, '')}/trace/setting"
        self._before: dict[str, Any] | None = None  # the settings to return to, while requests are traced for this page
        self._traces: list[Trace] = []
        self._refusal: str | None = None  # why no requests can be traced; None until the server was asked
        with ui.element("section").classes("card"):
            heading("Traces")
            paragraph(
                "A trace has the moments at which a request reached each part of the server and of the model, and the calls to other models "
                "that pass the trace on. Requests that are not traced cost nothing."
            ).classes("soft small")
            with ui.element("div").classes("line"):
                self._count: Any = ui.select({1: "1 request", 10: "10 requests", 100: "100 requests"}, value=10)
                self._count.props("outlined dense options-dense").props["aria-label"] = "How many requests"
                self._button: Any = ui.button("Trace the next", on_click=self._begin).props("unelevated")
                self._note: Any = ui.label().classes("soft").props('role="status"')
        with ui.element("section").classes("card") as self._steps_card:
            heading("Calls between models")
            self._steps_note: Any = ui.label().classes("soft small")
            self._steps: Any = ui.element("div").classes("calls")
        with ui.element("section").classes("card") as self._waterfall_card:
            with ui.element("div").classes("line"):
                heading("One request")
                self._choice: Any = ui.select({}, on_change=self._draw_waterfall).props("outlined dense options-dense")
                self._choice.props["aria-label"] = "Which request"
                self._choice.style("min-width:16rem;max-width:100%")
            with ui.element("div").classes("line"):
                for part in PARTS:
                    ui.label(part).classes(f"soft small key {part}")
            self._waterfall: Any = ui.element("ol").classes("waterfall")
            self._waterfall.props["aria-label"] = "The request, part by part"
        self._steps_card.visible = self._waterfall_card.visible = False
        page.on_look(self._read)
        context.client.on_delete(self._end)

    async def _get(self, path: str) -> Mapping[str, Any]:
        found = await asyncio.to_thread(self._page.watch.server.get, path)
        return found if isinstance(found, dict) else {}

    async def _post(self, settings: Mapping[str, Any]) -> None:
        await asyncio.to_thread(self._page.watch.server.post_json, self._path, settings)

    async def _begin(self) -> None:
        """Trace the next requests, unless the server traces by itself."""
        try:
            own, whole = await self._get(self._path), await self._get("/v2/trace/setting")
            if own["trace_level"] != ["OFF"] and self._before is None:
                self._note.text = f"The server traces one of {own['trace_rate']} requests already."
                return
            before = self._before or {name: None if own[name] == whole[name] else own[name] for name in _SETTINGS}
            await self._post({"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": str(self._count.value)})
            self._before = before
            self._note.text = "Waiting for requests ..."
        except (PybackendError, KeyError) as error:
            self._note.text = str(error)

    async def _end(self) -> None:
        """Return to the settings from before."""
        before, self._before = self._before, None
        if before is not None:
            with suppress(PybackendError):
                await self._post(before)

    async def _read(self) -> None:
        if not self._is_shown():
            return
        try:
            settings = await self._get(self._path)
            documents = await self._page.ask("/v2/diagnostics/traces", "traces")
            traces = [each for each in traces_in(documents) if each.model == self._model][:_MOST_LISTED]
        except PybackendError as error:
            self._refuse(str(error))
            return
        has_place = settings.get("trace_mode") != "triton" or settings.get("trace_file")
        self._refuse("" if has_place else _NO_PLACE)
        if self._before is not None:
            left = settings.get("trace_count", "0")
            self._note.text = "" if left == "0" else f"{left} more to come ..."
            if left == "0":
                await self._end()
        if [each.number for each in traces] != [each.number for each in self._traces]:
            self._traces = traces
            self._show()
        elif not traces and not self._note.text:
            self._note.text = _EMPTY

    def _refuse(self, reason: str) -> None:
        """Grey what the server refuses, and say why."""
        if reason != self._refusal:
            self._refusal = reason
            self._button.enabled = self._count.enabled = not reason
            self._note.text = reason

    def _show(self) -> None:
        traces = self._traces
        self._steps_card.visible = any(each.calls for each in traces)
        self._waterfall_card.visible = bool(traces)
        if not traces:
            return
        self._steps_note.text = f"Means of the last {'request' if len(traces) == 1 else f'{len(traces)} requests'}"
        self._steps.clear()
        with self._steps:
            self._draw_step(steps_of(traces, len(traces)))
        newest = self._choice.value is None or self._choice.value == next(iter(self._choice.options), None)
        options = {each.number: _title(each) for each in traces}
        value = traces[0].number if newest or self._choice.value not in options else self._choice.value
        self._choice.set_options(options, value=value)
        self._draw_waterfall()

    def _draw_step(self, step: Step) -> None:
        with ui.element("div").classes("call"):
            with ui.element("div").classes("step"):
                link(step.model, self._page.href("/model", name=step.model)).style("font-weight:600")
                calls = "" if step.per_request == 1 else f"{number(step.per_request)} calls for each request, "
                ui.label(f"{calls}{_ms(step.ms)}").classes("small")
                if step.compute_ms:
                    ui.label(f"waits {_ms(step.queue_ms)}, computes {_ms(step.compute_ms)}").classes("soft small")
            if step.calls:
                with ui.element("div").classes("step-row"):
                    for each in step.calls:
                        self._draw_step(each)

    def _draw_waterfall(self) -> None:
        trace = next((each for each in self._traces if each.number == self._choice.value), None)
        self._waterfall.clear()
        if trace is None:
            return
        rows = list(trace.walk())
        with self._waterfall:
            for depth, each in rows[:_MOST_ROWS]:
                _draw_row(trace, each, depth)
            if len(rows) > _MOST_ROWS:
                ui.label(f"... and {len(rows) - _MOST_ROWS} more").classes("soft")


def _draw_row(whole: Trace, trace: Trace, depth: int) -> None:
    span_ns = max(1, round(whole.ms * 1e6))
    with ui.element("li").classes("bar-row"):
        with ui.element("div").classes("name").style(f"padding-left:{min(depth, 6)}rem"):
            ui.label(trace.model)
            parts = ", ".join(f"{part} {_ms(ms)}" for part in PARTS if (ms := trace.ms_of(part)) > 0)
            ui.label(parts).classes("soft small")
            if trace.error:
                ui.label(trace.error).classes("small bad")
        with ui.element("div").classes("track tall"):
            for part in trace.parts:
                left = 100 * (part.begin_ns - whole.begin_ns) / span_ns
                width = 100 * (part.end_ns - part.begin_ns) / span_ns
                ui.element("div").classes(f"part {part.name}").style(f"left:{left:.3f}%;width:{width:.3f}%")
        ui.label(_ms(trace.ms)).classes("value")


def _title(trace: Trace) -> str:
    words = [_ms(trace.ms), *([f"id {trace.request_id[:40]}"] if trace.request_id else [])]
    return ", ".join([f"trace {trace.number}", *words, *(["failed"] if trace.error else [])])


def _ms(value: float) -> str:
    return number(value, 2, "ms")
