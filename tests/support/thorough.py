"""Tests that ``make test`` leaves to ``make test-all``: more rows of a table of which it runs one, and what takes
minutes.

A file that is named on the command line is run whole.

A plugin of pytest.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


def thorough(*rows: Any) -> list[Any]:
    """Values of a parameter, or tuples for several parameters, with which only ``make test-all`` runs a test."""
    return [pytest.param(*row if isinstance(row, tuple) else (row,), marks=pytest.mark.thorough) for row in rows]


def one_in(count: int, names: Iterable[Any]) -> list[Any]:
    """The names of a table's rows: ``make test`` runs the first of each ``count`` rows, ``make test-all`` all."""
    return [name if place % count == 0 else thorough(name)[0] for place, name in enumerate(names)]


def rows_of(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """The values of a parameter with which this run tests the file of a fixture, which need not prepare others."""
    items = (item for item in request.session.items if item.path == request.path)
    calls = (item.callspec.params for item in items if hasattr(item, "callspec"))
    return {params[parameter] for params in calls if parameter in params}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked thorough too, as make test-all does")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is thorough, but for ``--all``, for files that were named, and for ``-m thorough``."""
    if config.option.all or "thorough" in config.option.markexpr:
        return
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    left_out = [item for item in items if item.get_closest_marker("thorough") and item.path not in named]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
