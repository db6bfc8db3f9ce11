"""The channel, archives that several tests look into, and a CPython that is packed quickly."""

from pathlib import Path

import pytest

from tests.e2e.environments.conftest import about, write_about
from tests.floor.environments import Unavailable, interpreters
from tests.support.conda_channel import small_interpreter
from tests.support.packed_environments import conda_environment, second_minor, skip_without_channel

__all__ = ["about", "write_about"]


@pytest.fixture(scope="session")
def channel() -> Path:
    return skip_without_channel()


@pytest.fixture(scope="session")
def archive() -> Path:
    """Of a conda environment with another CPython than the host's."""
    return conda_environment(second_minor())


@pytest.fixture(scope="session")
def python() -> Path:
    """A directory with a CPython."""
    try:
        return small_interpreter(max(interpreters()))
    except Unavailable as error:
        pytest.skip(str(error))
