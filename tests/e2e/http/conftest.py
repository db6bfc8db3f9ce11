"""One server for all tests of the HTTP surface that leave it as they found it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.http.models import write_models
from tests.support.connection import Connection, connected
from tests.support.server import ServerProcess, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A ready server with the models of ``models.py``; its readiness at the end shows that every stub survived."""
    repository = tmp_path_factory.mktemp("http") / "models"
    write_models(repository)
    with serving(repository) as server:
        pids = server.stub_pids()
        yield server
        assert server.get("/v2/health/ready").status == 200
        assert server.stub_pids() == pids, "a model's process died and was restarted"
        assert "could not be handled" not in server.output, server.output


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Callable[..., Connection]]:
    """Makes connections to the server, closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(connected(server.port, **options))


@pytest.fixture
def ask(server: ServerProcess) -> Callable[..., Any]:
    """Sends a command to the probe model and returns the reply."""

    def ask(command: str, **members: Any) -> Any:
        tensor = {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": [command]}
        return server.infer("probe", {"inputs": [tensor], **members})

    return ask
