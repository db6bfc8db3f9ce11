"""A request that stubs die with before they begin it waits for the next one, but not for ever."""

import numpy as np
import pytest

from tests.support.repositories import identity_config, write_model
from tests.support.server import serving

DIES_AND_DENIES = """
import gc, os
from pybackend_stub.memory import StubMemory

class TritonPythonModel:
    def execute(self, requests):
        {before}
        (memory,) = [found for found in gc.get_objects() if isinstance(found, StubMemory)]
        memory.progress[0] = 0
        os._exit(7)
"""


@pytest.mark.faults
@pytest.mark.parametrize("elements", [4, 100_000], ids=["in the frame", "in shared memory"])
def test_a_request_that_kills_every_stub(tmp_path, elements):
    write_model(tmp_path, "denies", DIES_AND_DENIES.format(before="pass"), identity_config())
    data = np.zeros(elements, np.float32).tolist()
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [elements], "data": data}]}
    with serving(tmp_path) as server:
        reply = server.infer("denies", body)
        assert reply.status == 500
        assert reply.error.startswith("Stub process 'denies_0' is not healthy.")
        assert "exited with status 7" in reply.error


@pytest.mark.faults
def test_memory_that_was_given_back_is_not_sent_again(tmp_path):
    give_back = "requests.clear(); gc.collect(); memory_of_requests_is_given_back(); "
    helper = """
def memory_of_requests_is_given_back():
    from pybackend_stub.loop import StubLoop
    (loop,) = [found for found in gc.get_objects() if isinstance(found, StubLoop)]
    loop._return_inputs()
"""
    write_model(tmp_path, "denies", DIES_AND_DENIES.format(before=give_back) + helper, identity_config())
    data = np.zeros(100_000, np.float32).tolist()
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [100_000], "data": data}]}
    with serving(tmp_path) as server:
        reply = server.infer("denies", body)
        assert reply.status == 500
        server.wait_for("is not healthy")
        server.stop()
        assert server.output.count("is not healthy") == 1  # the first stub's death is the request's end
