"""Requests that a model has executed more than once: when they are answered, nothing of their earlier turns is left."""

import asyncio

import numpy as np
import pytest

from pybackend.inference.request import InferenceRequest
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor, output_array
from tests.support.ensembles import nothing_held
from tests.support.repositories import identity_config, write_model

COUNTING = """
class TritonPythonModel:
    def initialize(self, args):
        self.turns = {}

    def execute(self, requests):
        return [self.turn(request) for request in requests]

    def turn(self, request):
        key, array = request.correlation_id(), request.inputs()[0].as_numpy()
        self.turns[key] = self.turns.get(key, 0) + 1
        if self.turns[key] < array[0]:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * self.turns.pop(key))])
"""


@pytest.mark.parametrize("size", [1, 100_000], ids=["in_frame", "in_memory"])
def test_nothing_is_left_of_earlier_turns(tmp_path, size):
    write_model(tmp_path, "counting", COUNTING, identity_config(extra="sequence_batching { iterative_sequence: true }"))

    async def ask(engine, turns):
        request = InferenceRequest("counting", inputs=[input_tensor("IN", np.full(size, turns, np.float32))])
        response = await engine.open("counting").infer(request)
        array = output_array(response, "OUT")
        response.release()
        assert np.array_equal(array, np.full(size, turns * turns, np.float32))

    async def several(engine):
        async with asyncio.timeout(60):
            await asyncio.gather(*(ask(engine, turns) for turns in range(1, 20)))
            model = engine.repository.catalogue.find("counting")
            assert model.pending_count == 0
            for instance in model.instances:
                assert not instance.executor.executions.in_flight
                assert not instance.executor.executions.streaming
            await nothing_held(engine)

    with running_engine(tmp_path) as (engine, run):
        run(several(engine))
