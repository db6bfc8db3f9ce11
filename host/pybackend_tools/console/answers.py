"""Outputs on a page: numbers, tables, pictures, plots, classes, and the responses of a stream."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from nicegui import ui

from pybackend_client.inference import Output
from pybackend_client.values import shape_text
from pybackend_tools.console.charts import vector_chart
from pybackend_tools.console.frame import heading, pre
from pybackend_tools.console.pictures import opened, picture_of_array

_MOST_ROWS, _MOST_COLUMNS, _MOST_TEXTS = 20, 20, 50
_LONGEST_TEXT = 4000
_MOST_PLOTTED, _MOST_ELEMENTS = 4096, 200
_MOST_EVENTS, _LONGEST_EVENT, _LONGEST_JOINED = 200, 400, 20_000
_ABOUT = frozenset({"model_name", "model_version", "id", "error"})
_PICTURE_BEGINS = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF")


def show_output(output: Output, *, classes: bool) -> None:
    """An output of a response. ``classes``: it has ``value:index:label`` texts instead of scores."""
    values = output.values
    with ui.element("section").classes("tight") as section:
        section.props["aria-label"] = f"Output {output.name}"
        with ui.element("div").classes("line"):
            heading(output.name, 3)
            ui.label(f"{output.datatype} {shape_text(values.shape)}").classes("soft small mono")
            ui.element("div").classes("gap").style("flex:1")
            ui.button("Save", on_click=lambda: _save(output)).props("flat dense")
        if not values.size:
            ui.label("no elements").classes("soft")
        elif classes and output.datatype == "BYTES":
            _show_classes(values)
        elif output.datatype == "BYTES":
            _show_texts(values)
        elif values.size == 1:
            ui.label(_text(values.ravel()[0])).classes("number")
        else:
            _show_numbers(values)


def _show_numbers(values: np.ndarray) -> None:
    picture = picture_of_array(values)
    if picture is not None:
        show_picture(picture, "The output as a picture")
        return
    flat = values.reshape(-1) if max(values.shape) == values.size else values.reshape(-1, values.shape[-1])
    if (
        flat.ndim == 1
        and 8 <= flat.size <= _MOST_PLOTTED
        and flat.dtype.kind in "iuf"
        and bool(np.isfinite(flat.astype(np.float64)).all())
    ):
        vector_chart([float(each) for each in flat])
    if flat.ndim == 1:
        rest = f"  ... and {flat.size - _MOST_ELEMENTS:,} more" if flat.size > _MOST_ELEMENTS else ""
        pre("  ".join(map(_text, flat[:_MOST_ELEMENTS])) + rest, wraps=True)
    else:
        _show_table(flat)


def _show_table(rows: np.ndarray) -> None:
    cut = rows[:_MOST_ROWS, :_MOST_COLUMNS]
    texts = [[_text(each) for each in row] for row in cut]
    width = max((len(text) for row in texts for text in row), default=1)
    lines = [
        "  ".join(text.rjust(width) for text in row) + ("  ..." if rows.shape[1] > _MOST_COLUMNS else "")
        for row in texts
    ]
    if len(rows) > _MOST_ROWS:
        lines.append(f"... and {len(rows) - _MOST_ROWS:,} more rows")
    pre("\n".join(lines))


def _show_texts(values: np.ndarray) -> None:
    elements = [
        each if isinstance(each, bytes) else str(each).encode() for each in values.ravel()[:_MOST_TEXTS].tolist()
    ]
    for data in elements:
        if data.startswith(_PICTURE_BEGINS) and _is_picture(data):
            show_picture(data, "The output as a picture")
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = repr(data[:_LONGEST_TEXT])
        pre(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ... ({len(data):,} bytes)", wraps=True)
    if values.size > _MOST_TEXTS:
        ui.label(f"... and {values.size - _MOST_TEXTS:,} more").classes("soft")


def _is_picture(data: bytes) -> bool:
    try:
        return opened(data) is not None
    except Exception:  # noqa: BLE001  too large, or made to break decoders: then it is shown as bytes
        return False


def show_picture(data: bytes, label: str) -> None:
    """A picture that lies in the page itself."""
    kind = (
        "png"
        if data.startswith(b"\x89PNG")
        else "jpeg"
        if data.startswith(b"\xff\xd8")
        else "gif"
        if data.startswith(b"GIF8")
        else "webp"
    )
    element = ui.element("img").classes("answer")
    element.props["src"] = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    element.props["alt"] = label


def _show_classes(values: np.ndarray) -> None:
    rows = [str(each.decode(errors="replace")).split(":", 2) for each in values.ravel()[:_MOST_TEXTS].tolist()]
    scores = [_float(row[0]) for row in rows]
    high, low = max(scores, default=1.0), min([0.0, *scores])
    for row, score in zip(rows, scores, strict=True):
        with ui.element("div").classes("bar-row"):
            ui.label(row[2] if len(row) == 3 else f"class {row[1] if len(row) > 1 else '?'}").classes("name")
            with ui.element("div").classes("track"):
                ui.element("div").classes("fill").style(f"width:{100 * (score - low) / ((high - low) or 1):.1f}%")
            ui.label(f"{score:.4g}").classes("value")


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if np.isfinite(value) else 0.0


def _text(value: Any) -> str:
    if isinstance(value, np.floating | float):
        return f"{float(value):.6g}"
    return str(value)


def _save(output: Output) -> None:
    target = io.BytesIO()
    values = output.values
    if values.dtype == object:
        values = values.astype(np.bytes_)
    np.save(target, values, allow_pickle=False)
    ui.download.content(target.getvalue(), f"{re.sub(r'[^A-Za-z0-9_-]', '_', output.name)}.npy")


class Stream:
    """The responses of a stream: the last ones, and the number of all. A thread adds them, the page shows them."""

    def __init__(self) -> None:
        self.count = 0
        self.errors = 0
        self.lines: deque[str] = deque(maxlen=_MOST_EVENTS)
        self.joined = ""  # the texts of a stream of single texts, in a row
        self.stopped = False
        self.ended = ""

    def add(self, event: Mapping[str, Any]) -> None:
        """A response has arrived."""
        self.count += 1
        if set(event) == {"error"}:
            self.errors += 1
            self.lines.append(f"error: {event['error']}"[:_LONGEST_EVENT])
            return
        shown = {name: value for name, value in event.items() if name not in _ABOUT}
        if len(shown) == 1 and isinstance(text := next(iter(shown.values())), str):
            self.joined = (self.joined + text)[-_LONGEST_JOINED:]
        line = "  ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in shown.items())
        self.lines.append(line if len(line) <= _LONGEST_EVENT else f"{line[:_LONGEST_EVENT]} ...")


class StreamView:
    """A stream on the page."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._shown = -1
        with ui.element("div").classes("line"):
            self._count = ui.label().classes("soft").props('role="status"')
            ui.element("div").classes("gap").style("flex:1")
            self._stop = ui.button("Stop", on_click=self._end).props("flat dense")
        self._joined = pre("", wraps=True)
        self._lines = pre("")
        self.refresh()

    def _end(self) -> None:
        self._stream.stopped = True

    def refresh(self) -> None:
        """Show what has arrived since."""
        stream = self._stream
        if stream.ended:
            self._stop.visible = False
        if stream.count == self._shown and not stream.ended:
            return
        self._shown = stream.count
        kept = f", the last {_MOST_EVENTS} are shown" if stream.count > _MOST_EVENTS else ""
        self._count.text = f"{stream.count:,} response{'' if stream.count == 1 else 's'}{kept}{f'. {stream.ended}' if stream.ended else ' ...'}"
        self._joined.text, self._joined.visible = stream.joined, bool(stream.joined)
        self._lines.text = "\n".join(stream.lines)
        self._lines.visible = bool(stream.lines) and not stream.joined
