"""Coroutines of a decoupled model that run models: the execution that made them is over, and keeps nobody busy."""

import asyncio

import numpy as np
import pytest

from pybackend.inference.request import InferenceRequest
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor
from tests.support.repositories import tensors, write_model

ONE = {"IN": ("TYPE_INT32", [1])}, {"OUT": ("TYPE_INT32", [1])}

NESTED = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            await self.answer(request)

    async def answer(self, request):
        number = request.inputs()[0].as_numpy()
        sender = request.get_response_sender()
        if number[0] > 0:
            call = pb_utils.InferenceRequest(
                model_name="nested", inputs=[pb_utils.Tensor("IN", number - 1)], requested_output_names=["OUT"]
            )
            iterator = await call.async_exec(decoupled=True)
            for response in COLLECTED:
                sender.send(response)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]), flags=1)
"""


@pytest.mark.parametrize(
    "collected",
    [
        pytest.param("iterator", id="in the loop's thread"),
        pytest.param("await asyncio.get_running_loop().run_in_executor(None, list, iterator)", id="in another thread"),
    ],
)
def test_a_model_whose_coroutines_call_it_again(tmp_path, collected):
    inputs, outputs = (tensors(**shapes) for shapes in ONE)
    config = f"""
    backend: "python"
    input [ {inputs} ]
    output [ {outputs} ]
    model_transaction_policy {{ decoupled: true }}
    """
    write_model(tmp_path, "nested", NESTED.replace("COLLECTED", collected), config)
    with running_engine(tmp_path) as (engine, run):

        async def answers():
            arrived = asyncio.Queue()
            request = InferenceRequest("nested", inputs=[input_tensor("IN", np.array([3], np.int32))])
            engine.submit(engine.repository.catalogue.find("nested"), request, arrived.put_nowait)
            values = []
            async with asyncio.timeout(60):
                while True:
                    response = await arrived.get()
                    assert response.error is None, response.error
                    values.append(int.from_bytes(bytes(response.outputs[0].data), "little"))
                    response.release()
                    if response.final:
                        return values

        # What is looked for depended on which of two threads was faster.
        for _ in range(150):
            assert run(answers()) == [0, 1, 2, 3]
