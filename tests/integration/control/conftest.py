"""Engines in explicit mode over a repository that a test writes."""

import pytest

from tests.integration.models.conftest import running_engine


@pytest.fixture
def marks(tmp_path, monkeypatch):
    """What models have written about their lives, by name."""
    directory = tmp_path / "marks"
    directory.mkdir()
    monkeypatch.setenv("MARKS", str(directory))

    def marks(name):
        path = directory / name
        return path.read_text().splitlines() if path.exists() else []

    return marks


@pytest.fixture
def repository(tmp_path, marks):
    repository = tmp_path / "models"
    repository.mkdir()
    return repository


@pytest.fixture
def scratch(tmp_path):
    """Where rooms of servers lie: empty again at the end."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    yield directory
    assert list(directory.iterdir()) == []


@pytest.fixture
def start(repository, scratch):
    """Starts an engine in explicit mode; gives it and the function that runs coroutines on its loop."""
    engines = []

    def start(*startup_models, **options):
        engines.append(
            running_engine(
                repository, explicit=True, startup_models=startup_models, runtime_places=[scratch], **options
            )
        )
        return engines[-1].__enter__()

    yield start
    for engine in engines:
        engine.__exit__(None, None, None)
