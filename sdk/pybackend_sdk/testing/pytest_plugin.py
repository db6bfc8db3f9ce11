"""The pytest fixture ``model_harness``; pytest finds it by an entry point wherever pybackend is installed."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, Iterator

import pytest

if TYPE_CHECKING:
    from pybackend_sdk.testing.harness import ModelHarness


@pytest.fixture
def model_harness() -> "Iterator[Callable[..., ModelHarness]]":
    """Opens models for a test.

    ``harness = model_harness("models/add_sub", parameters={"threshold": "0.5"})`` takes the arguments of
    :class:`~pybackend_sdk.testing.ModelHarness`. The models are closed when the test ends, the last one first; if a
    ``finalize`` raises, the test ends in an error.
    """
    with ExitStack() as stack:

        def open_model(*arguments: Any, **named: Any) -> "ModelHarness":
            from pybackend_sdk.testing.harness import ModelHarness  # late: most test runs never use it

            return stack.enter_context(ModelHarness(*arguments, **named))

        yield open_model
