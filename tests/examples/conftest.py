"""One server for all examples, started by the code that `make demo` uses."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def load_demo() -> ModuleType:
    """``examples/demo.py`` as a module: it is a script beside the examples, not part of a package."""
    if "examples_demo" not in sys.modules:
        spec = importlib.util.spec_from_file_location("examples_demo", DEMO)
        sys.modules["examples_demo"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["examples_demo"])
    return sys.modules["examples_demo"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per example, or per client; what cannot run here is skipped by name."""
    demo = load_demo()
    if "example" in metafunc.fixturenames:
        examples = [example for example in demo.find_examples() if example.name not in demo.PROGRAMS]
        metafunc.parametrize("example", [pytest.param(each, id=each.name, marks=_marks(each)) for each in examples])
    if "client" in metafunc.fixturenames:
        clients = [client for example in demo.find_examples() for client in demo.find_clients(example)]
        metafunc.parametrize(
            "client",
            [
                pytest.param(each, id=f"{each.parent.name}-{each.name}", marks=_marks_of_client(each))
                for each in clients
            ],
        )


ALWAYS = {"add_sub", "bind", "bls", "decoupled"}
"""Examples whose clients ``make test`` runs; ``make demo`` and ``make test-all`` run those of all."""


def _marks_of_client(client: Path) -> list[pytest.MarkDecorator]:
    return _marks(client.parent) + ([] if client.parent.name in ALWAYS else [pytest.mark.thorough])


def _marks(example: Path) -> list[pytest.MarkDecorator]:
    needs = load_demo().NEEDS
    return [getattr(pytest.mark, needs[example.name])] if example.name in needs else []


@pytest.fixture(scope="session")
def demo() -> ModuleType:
    return load_demo()


@pytest.fixture(autouse=True)
def _can_run_here(request: pytest.FixtureRequest, demo: ModuleType) -> None:
    """An example whose environment cannot be packed here is skipped with what ``pybackend pack`` says."""
    names = request.fixturenames
    if "example" in names or "client" in names:
        example = request.getfixturevalue("example") if "example" in names else request.getfixturevalue("client").parent
        if reason := demo.missing(example):
            pytest.skip(reason)


@pytest.fixture(scope="session")
def server(demo: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> object:
    """A server with the models of every example that can run here."""
    repository = tmp_path_factory.mktemp("examples")
    models = demo.assemble_repository([e for e in demo.find_examples() if not demo.missing(e)], repository)
    with demo.Server(repository, *demo.control_flags(models)) as running:
        yield running
