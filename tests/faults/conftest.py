"""Servers of these tests start from the command line, each in a process that has nothing of another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.warm_start import starts


@pytest.fixture(scope="module", autouse=True)
def whole_starts() -> Iterator[None]:
    with starts(warm=False):
        yield
