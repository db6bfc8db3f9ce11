"""Repositories that are partly wrong, and what the server says about each model in them."""

import json
import re
from collections.abc import Callable

import pytest

from tests.support.server import ServerProcess


@pytest.fixture(scope="session")
def status_of() -> Callable[[ServerProcess, str, str], str]:
    """Reads a row of the table of models that the server prints once all have loaded, or failed to."""

    def status_of(server: ServerProcess, model: str, version: str = "1") -> str:
        name, number = re.escape(model), re.escape(version)
        found = server.wait_for(rf'"{name} *\| {number} *\| (.*)"\n|"  {name}: (.*)"\n')
        row = found[1] or f"UNAVAILABLE: {found[2]}"  # of many models, the log has the failures only
        return json.loads(f'"{row}"')

    return status_of
