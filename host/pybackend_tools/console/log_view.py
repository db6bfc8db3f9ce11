"""The last lines of the server's log on a page, with their tracebacks, as far as the server shows them."""

from __future__ import annotations

import time
from collections import deque
from typing import Any
from urllib.parse import quote

from nicegui import ui

from pybackend.errors import PybackendError
from pybackend_tools.console.frame import Page, pre

_MOST_LINES = 1000
_LEVELS = {"All lines": 0, "Warnings": 1, "Errors": 2}
_WEIGHTS = {"WARNING": 1, "ERROR": 2, "CRITICAL": 2}


class LogView:
    """The lines of the whole server, or of one model."""

    def __init__(self, page: Page, model: str = "") -> None:
        self._page, self._model = page, model
        self._lines: deque[dict[str, Any]] = deque(maxlen=_MOST_LINES)
        self._after = 0
        with ui.element("div").classes("line"):
            self._level: Any = ui.select(list(_LEVELS), value="All lines", on_change=self._show).props(
                "outlined dense options-dense"
            )
            self._level.props["aria-label"] = "Which lines"
            self._search: Any = ui.input(placeholder="Search", on_change=self._show).props(
                "outlined dense clearable debounce=200"
            )
            self._search.props["aria-label"] = "Search the log"
            ui.label("newest lines first").classes("soft small")
        self._note: Any = ui.label().classes("soft")
        self._text: Any = pre("", wraps=True)
        self._text.props["aria-label"] = "Log"
        page.on_look(self._read)

    async def _read(self) -> None:
        path = f"/v2/diagnostics/log?after={self._after}&model={quote(self._model, safe='')}"
        try:
            lines = await self._page.ask(path, "lines")
            self._note.text = ""
        except PybackendError as error:
            self._note.text = f"No log: {error}"
            return
        if lines:
            if lines[0]["number"] <= self._after:  # a new server, which counts from 1 again
                self._lines.clear()
            self._lines.extend(lines)
            self._after = lines[-1]["number"]
        self._show()

    def _show(self) -> None:
        least, word = _LEVELS[self._level.value], (self._search.value or "").lower()
        shown = [
            _line(each)
            for each in self._lines
            if _WEIGHTS.get(each["level"], 0) >= least
            and word in f"{each['text']} {each['place']} {each['instance']}".lower()
        ]
        text = "\n".join(reversed(shown[-300:]))
        if text != self._text.text:
            self._text.text = text
        self._text.visible = bool(text)
        if not self._note.text or self._note.text == _EMPTY:
            self._note.text = "" if text else _EMPTY


_EMPTY = "No lines."


def _line(line: dict[str, Any]) -> str:
    stamp = time.strftime("%H:%M:%S", time.localtime(line["time"]))
    return f"{stamp} {line['level']:<7} {line['place']}  {line['text'].rstrip()}"
