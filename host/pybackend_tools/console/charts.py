"""Charts, which ECharts draws. They carry numbers and our own words, and no text of strangers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from pybackend_tools.console.frame import heading

_COLOURS = ["#4c7bd9", "#d98a3d", "#4aa37a", "#9a6fc4", "#c25a5a"]
_PART_COLOURS = {"queue": "#d98a3d", "input": "#9a6fc4", "compute": "#4c7bd9", "output": "#4aa37a"}
"""As in style.css, for traces."""
_GREY = "#8892a0"
_SHORTEST_SPAN_S, _LONGEST_SPAN_S = 30, 300
_GRID = {"left": 8, "right": 30, "top": 28, "bottom": 8, "containLabel": True}
_LINE = {"lineStyle": {"color": "rgba(136,146,160,.25)"}}


def _options(axis: Mapping[str, Any], series: list[dict[str, Any]], *, legend: bool) -> dict[str, Any]:
    return {
        "animation": False,
        "color": _COLOURS,
        "grid": _GRID,
        "legend": {
            "show": legend,
            "right": 8,
            "top": 0,
            "itemWidth": 12,
            "itemHeight": 8,
            "textStyle": {"color": _GREY, "fontSize": 11},
        },
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "axisLabel": {"color": _GREY, "hideOverlap": True},
            "axisTick": {"show": False},
            "axisLine": _LINE,
            **axis,
        },
        "yAxis": {"type": "value", "axisLabel": {"color": _GREY}, "splitLine": _LINE, "splitNumber": 3},
        "series": series,
    }


def time_chart(title: str, names: Sequence[str], *, stacked: bool = False) -> Any:
    """A chart over time with a line for each name; :func:`show_points` gives it points."""
    series = [
        {
            "name": name,
            "type": "line",
            "symbol": "none",
            "data": [],
            "lineStyle": {"width": 1.5},
            **({"color": _PART_COLOURS[name]} if name in _PART_COLOURS else {}),
            **({"stack": "all", "areaStyle": {"opacity": 0.35}} if stacked else {}),
        }
        for name in names
    ]
    heading(title, 3)
    chart = ui.echart(_options({"type": "time"}, series, legend=len(names) > 1)).classes("chart")
    chart.props["role"] = "img"
    chart.props["aria-label"] = title
    return chart


def show_points(chart: Any, times_s: Sequence[float], columns: Sequence[Sequence[float | None]]) -> None:
    """The points of a chart over time."""
    now_s = time.time()
    span_s = min(_LONGEST_SPAN_S, max(_SHORTEST_SPAN_S, now_s - min(times_s, default=now_s)))
    chart.options["xAxis"] |= {"min": (now_s - span_s) * 1000, "max": now_s * 1000}
    for series, column in zip(chart.options["series"], columns, strict=True):
        series["data"] = drawn_points(times_s, column)
    chart.update()


def drawn_points(times_s: Sequence[float], values: Sequence[float | None]) -> list[Any]:
    """A line's points. One between two gaps has a dot: no line goes there, and it would not be seen."""
    points: list[Any] = [[time_s * 1000, value] for time_s, value in zip(times_s, values, strict=True)]
    around = [None, *values, None]
    for number, point in enumerate(points):
        if values[number] is not None and around[number] is None and around[number + 2] is None:
            points[number] = {"value": point, "symbol": "circle", "symbolSize": 5}
    return points


def bar_chart(title: str) -> Any:
    """A chart of counts; :func:`show_bars` gives it bars."""
    series = [{"type": "bar", "data": [], "barMaxWidth": 28}]
    heading(title, 3)
    chart = ui.echart(_options({"type": "category", "data": []}, series, legend=False)).classes("chart")
    chart.props["role"] = "img"
    chart.props["aria-label"] = title
    return chart


def show_bars(chart: Any, bars: Sequence[tuple[str, float]]) -> None:
    """The bars of a chart."""
    chart.options["xAxis"]["data"] = [name for name, _ in bars]
    chart.options["series"][0]["data"] = [value for _, value in bars]
    chart.update()


def vector_chart(values: Sequence[float]) -> Any:
    """The elements of a vector."""
    kind = {"type": "bar"} if len(values) <= 64 else {"type": "line", "showSymbol": False, "lineStyle": {"width": 1}}
    axis = {"type": "category", "data": [str(index) for index in range(len(values))]}
    options = _options(axis, [{**kind, "data": list(values)}], legend=False)
    options["grid"] = {**_GRID, "top": 12}
    chart = ui.echart(options).classes("chart").style("height:10rem")
    chart.props["role"] = "img"
    chart.props["aria-label"] = f"{len(values)} elements as a plot"
    return chart
