"""Questions about readiness that come together with work, in any order."""

import asyncio

import numpy as np
import pytest

from tests.integration.models.conftest import running_engine
from tests.support.repositories import tensors, write_model
from tests.support.streams import ONE, Stream

COROUTINES = """
import asyncio

loops = set()


class TritonPythonModel:
    asked = False

    async def execute(self, requests):
        loops.add(asyncio.get_running_loop())
        while not self.asked:
            await asyncio.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([len(loops)], np.int32))]) for _ in requests]

    async def is_ready(self):
        loops.add(asyncio.get_running_loop())
        self.asked = True
        return True
"""
WAITING = """
import threading


class TritonPythonModel:
    def initialize(self, args):
        self.asked = threading.Event()

    def execute(self, requests):
        self.asked.wait()
        self.asked.clear()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    def is_ready(self):
        self.asked.set()
        return True
"""
CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_INT32", [1]))} ]
output [ {tensors(OUT=("TYPE_INT32", [1]))} ]
{ONE}
"""
NAMES = [f"coroutines_{number}" for number in range(6)]


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function that sends a request, asks about readiness some turns of the loop later, and waits for both answers."""
    repository = tmp_path_factory.mktemp("probes")
    for name in NAMES:
        write_model(repository, name, COROUTINES, CONFIG)
    write_model(repository, "waiting", WAITING, CONFIG)
    with running_engine(repository) as (engine, run):

        async def both(name, turns):
            stream = Stream(engine, name, {"IN": np.ones(1, np.int32)})
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                ready = await engine.is_model_ready(engine.repository.catalogue.find(name))
                return ready, [answer.out for answer in await stream.rest()]

        yield lambda name, turns: run(both(name, turns))


@pytest.mark.spec("pb-Y01")
@pytest.mark.parametrize("name", NAMES)
def test_execute_and_is_ready_share_one_loop(ask, name):
    """Also where both need it for the first time in the same moment: a lock of asyncio belongs to one loop."""
    assert ask(name, 0) == (True, [[1]])


@pytest.mark.spec("pb-Y01")
@pytest.mark.parametrize("turns", range(6))
def test_a_question_that_comes_with_work_is_heard_while_that_runs(ask, turns):
    """Whoever reads at that moment: the host does not ask again before it has the answer."""
    for _ in range(30):
        assert ask("waiting", turns) == (True, [[1]])
