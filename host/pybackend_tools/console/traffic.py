"""The part of a model's page about its versions: which share of the requests each answers, and how to change that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nicegui import ui

from pybackend.errors import PybackendError
from pybackend_client.connection import control_path
from pybackend_tools.console.frame import Page, confirmed, facts, heading, number, paragraph, say

_SOURCES = {"default": "by default", "configuration": "by the configuration", "request": "by a change since the load"}


class TrafficCard:
    """The shares of a model's versions."""

    def __init__(self, page: Page, model: str) -> None:
        self._page, self._model = page, model
        self._card: Any = ui.element("section").classes("card")
        self._weights: dict[str, Any] = {}

    async def show(self) -> None:
        """Show what is in effect now."""
        try:
            rules = await asyncio.to_thread(self._page.watch.server.get, self._path)
        except PybackendError as error:
            self._draw({}, str(error))
        else:
            self._draw(rules, "")

    @property
    def _path(self) -> str:
        return f"{control_path(self._model)}/traffic"

    def _draw(self, rules: Mapping[str, Any], trouble: str) -> None:
        shares, shadow = rules.get("shares") or {}, rules.get("shadow")
        self._card.clear()
        with self._card:
            heading("Versions and their shares")
            if trouble:
                paragraph(trouble).classes("soft")
                return
            source = _SOURCES.get(str(rules.get("source")), "")
            rows = [(f"version {version}", f"{number(share)} % {source}") for version, share in shares.items()]
            if shadow:
                rows.append((f"version {shadow['version']}", f"copies of {shadow['percent']} %, and answers nobody"))
            facts(rows)
            if len(self._page.watch.versions(self._model)) < 2:
                paragraph("A further version could take a share of the requests.").classes("soft small")
                return
            refusal = self._page.watch.control_refusal
            with ui.element("div").classes("line"):
                self._weights = {
                    version: self._weight(version, rules) for version in self._page.watch.versions(self._model)
                }
                button: Any = ui.button("Change", on_click=self._change).props("outline")
                reset: Any = ui.button("As configured", on_click=self._reset).props("flat")
            for element in (*self._weights.values(), button, reset):
                element.enabled = not refusal
            if refusal:
                paragraph(refusal).classes("soft small")

    def _weight(self, version: str, rules: Mapping[str, Any]) -> Any:
        now = rules.get("weights") or rules.get("shares") or {}
        field: Any = ui.number("Weight", value=round(float(now.get(version, 0))), min=0, precision=0)
        field.props("outlined dense").style("width:8rem")
        field.props["label"] = f"Weight of {version}"
        return field

    async def _change(self) -> None:
        weights = {version: int(field.value or 0) for version, field in self._weights.items() if field.value}
        shown = ", ".join(f"version {version}: {weight}" for version, weight in weights.items())
        if not weights:
            say("One version at least needs a weight above 0", bad=True)
        elif await confirmed(
            f"Requests to {self._model} without a version will go to {shown}. Others get none.", "Change", hurts=True
        ):
            await self._post({"weights": weights})

    async def _reset(self) -> None:
        if await confirmed(f"Return to the shares of {self._model}'s configuration?", "Return", hurts=True):
            await self._post({"reset": True})

    async def _post(self, change: Mapping[str, Any]) -> None:
        try:
            await asyncio.to_thread(self._page.watch.server.post_json, self._path, change)
        except PybackendError as error:
            say(str(error), bad=True)
        await self.show()
