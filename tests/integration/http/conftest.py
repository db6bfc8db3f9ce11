"""Loops to run the contracts on: the one that serves, and the standard library's for comparison."""

import asyncio

import pytest
import uvloop


@pytest.fixture(
    params=[
        pytest.param(uvloop.new_event_loop, id="uvloop"),
        pytest.param(asyncio.new_event_loop, id="asyncio", marks=pytest.mark.thorough),
    ]
)
def run(request):
    """Runs a coroutine on a loop of its own, for a minute at most."""

    def run(coroutine):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(coroutine, 60))

    return run
