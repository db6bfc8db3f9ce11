"""Frameworks that take seconds to import: only the process that runs their tests pays for it, not each that collects
them."""

import importlib
import importlib.util
from typing import Any

import pytest


class LateModule:
    """A module that is imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest looks for its marks in everything that a file of tests has
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def import_late(name: str) -> LateModule:
    """A module for the tests of a file, which are skipped where its package is not installed."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
    return LateModule(name)
