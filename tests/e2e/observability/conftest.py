"""What the tests of logs and traces share: a model, and requests to it over both ports."""

from pathlib import Path

import pytest

from tests.support.repositories import IDENTITY, identity_config, write_model

REQUEST = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "identity", IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    return repository


def lines_of(path: Path) -> list[str]:
    """The lines of a file, none if it does not exist yet."""
    return path.read_text().splitlines() if path.exists() else []
