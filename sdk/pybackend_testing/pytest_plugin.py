"""The pytest fixture ``model_harness``; pytest finds it by an entry point wherever pybackend is installed."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, Iterator, Union

import pytest

if TYPE_CHECKING:
    from pybackend_testing.harness import EnsembleHarness, ModelHarness


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for models with an environment."""
    group = parser.getgroup("pybackend")
    group.addoption(
        "--model-env",
        metavar="PATH",
        help="environment that models of the fixture model_harness run in: an archive or a directory, or 'here' for the "
        "tests' own process [the model's EXECUTION_ENV_PATH]",
    )
    group.addoption(
        "--model-debug-port",
        metavar="PORT",
        type=int,
        help="wait for a debugger on this port before a model with an environment of the fixture model_harness is imported",
    )


@pytest.fixture
def model_harness(request: pytest.FixtureRequest) -> "Iterator[Callable[..., Any]]":
    """Opens models for a test.

    ``harness = model_harness("models/add_sub", parameters={"threshold": "0.5"})`` takes the arguments of
    :class:`~pybackend_testing.ModelHarness`, for the directory of an ensemble those of
    :class:`~pybackend_testing.EnsembleHarness`. The models are closed when the test ends, the last one first; if a
    ``finalize`` raises, the test ends in an error.
    """
    with ExitStack() as stack:

        def open_model(*arguments: Any, **named: Any) -> "Union[EnsembleHarness, ModelHarness]":
            from pybackend_testing.configuration import is_ensemble  # late: most test runs never use them
            from pybackend_testing.harness import EnsembleHarness, ModelHarness

            named.setdefault("environment", request.config.getoption("--model-env"))
            if arguments and "config" not in named and is_ensemble(arguments[0]):
                return stack.enter_context(EnsembleHarness(*arguments, **named))
            named.setdefault("debug_port", request.config.getoption("--model-debug-port"))
            return stack.enter_context(ModelHarness(*arguments, **named))

        yield open_model
