"""The fixture ``model_harness`` for pytest, which finds it by an entry point wherever pybackend is installed."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, Iterator

import pytest

if TYPE_CHECKING:
    from pybackend_sdk.testing.harness import ModelHarness


@pytest.fixture
def model_harness() -> "Iterator[Callable[..., ModelHarness]]":
    """Opens models for a test.

    ``harness = model_harness("models/add_sub", parameters={"threshold": "0.5"})`` takes what :class:`~pybackend_sdk.testing.ModelHarness` takes. The models are closed when the test ends, the last one
    first; a ``finalize`` that raises is an error of the test.
    """
    with ExitStack() as stack:

        def open_model(*arguments: Any, **named: Any) -> "ModelHarness":
            from pybackend_sdk.testing.harness import ModelHarness  # late: most test runs never get here

            return stack.enter_context(ModelHarness(*arguments, **named))

        yield open_model
