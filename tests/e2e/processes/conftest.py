"""A server whose processes have nothing of another, for tests of what processes are."""

from collections.abc import Iterator

import pytest

from tests.support.warm_start import starts


@pytest.fixture
def whole_starts() -> Iterator[None]:
    """Servers start from the command line."""
    with starts(warm=False):
        yield
