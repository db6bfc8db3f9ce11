"""Repositories that are partly wrong, and what the server says about each model in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.support.server import ServerProcess


@pytest.fixture(scope="session")
def status_of() -> Callable[[ServerProcess, str, str], str]:
    """Reads a row of the table of models that the server prints once all have loaded, or failed to."""

    def status_of(server: ServerProcess, model: str, version: str = "1") -> str:
        row = server.wait_for(rf'"{re.escape(model)} *\| {re.escape(version)} *\| (.*)"\n')[1]
        return json.loads(f'"{row}"')

    return status_of
