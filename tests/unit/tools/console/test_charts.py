"""What a chart draws of a column."""

from __future__ import annotations

import pytest


def test_a_point_between_gaps_is_a_dot() -> None:
    pytest.importorskip("nicegui", reason="the console's packages are not installed: make test-console installs them")
    from pybackend_tools.console.charts import drawn_points

    def dot(time_s: float, value: float) -> dict[str, object]:
        return {"value": [time_s * 1000, value], "symbol": "circle", "symbolSize": 5}

    assert drawn_points([1, 2, 3], [None, 0.5, None]) == [[1000, None], dot(2, 0.5), [3000, None]]
    assert drawn_points([1, 2, 3, 4], [7, None, 0, 8]) == [dot(1, 7), [2000, None], [3000, 0], [4000, 8]]
    assert drawn_points([1], [3]) == [dot(1, 3)]
