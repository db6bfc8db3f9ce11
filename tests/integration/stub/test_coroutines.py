"""The event loop of a model's coroutines goes on, whatever one of them does to it."""

import pytest

from pybackend_wire.messages import StubMessage
from tests.integration.stub.conftest import execute, request

MODEL = """
import asyncio, sys

class TritonPythonModel:
    async def execute(self, requests):
        name = requests[0].request_id()
        if name:
            await getattr(self, name)()
        return [pb_utils.InferenceResponse([])]

    async def quit(self):
        sys.exit(3)

    async def quit_in_a_task(self):
        await asyncio.gather(self.quit())

    async def quit_in_a_callback(self):
        asyncio.get_running_loop().call_soon(sys.exit)
        await asyncio.sleep(0.01)

    async def interrupt_in_a_task(self):
        async def interrupt():
            raise KeyboardInterrupt
        await asyncio.gather(interrupt())

    async def stop_the_loop(self):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)

    async def cancel_itself(self):
        asyncio.current_task().cancel()
        await asyncio.sleep(1)
"""


@pytest.mark.parametrize(
    ("deed", "fails"),
    [
        ("quit", True),
        ("quit_in_a_task", True),
        ("interrupt_in_a_task", True),
        ("cancel_itself", True),
        ("quit_in_a_callback", False),
        ("stop_the_loop", False),
    ],
)
def test_the_loop_goes_on(host, deed, fails):
    stub = host(MODEL)
    stub.say(execute(1, request(deed)))
    *_, (result,) = stub.wait_for(StubMessage.RESULT)
    assert (result[0] is not None) is fails
    stub.say(execute(2))
    *_, (result,) = stub.wait_for(StubMessage.RESULT)
    assert result[0] is None
