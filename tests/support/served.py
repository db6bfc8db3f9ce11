"""The server of a file's tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ServerProcess, serving


def served(*, all_survive: bool = False, **options: Any) -> Callable[[Callable[[Path], object]], Any]:
    """Makes a fixture for all tests of a file: a server on the models that the decorated function writes into a
    directory.

    The directory is the server's ``repository``.

    Args:
        all_survive: whether no model's process may die.
        options: those of ``serving``.
    """

    def fixture_of(write: Callable[[Path], object]) -> Any:
        @pytest.fixture(scope="module", name=write.__name__)
        def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
            repository = tmp_path_factory.mktemp("models")
            write(repository)
            with serving(repository, **options) as server:
                server.repository = repository
                pids = server.stub_pids() if all_survive else None
                yield server
                assert pids is None or server.stub_pids() == pids, "a model's process died and was restarted"

        return server

    return fixture_of
