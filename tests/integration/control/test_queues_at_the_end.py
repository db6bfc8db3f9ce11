"""Requests that wait in a queue when their model is unloaded or the server stops: each is answered, whatever the
scheduler."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, RequestFlags
from tests.support.engine import output_array
from tests.support.ensembles import held, request_of
from tests.support.gates import Gate
from tests.support.model_control import CONFIG, answering, until
from tests.support.repositories import write_model
from tests.support.thorough import one_in

COUNT = 8
"""Requests; the first of them is held in ``execute``."""

ONE = "instance_group { count: 1 kind: KIND_CPU }"
SCHEDULERS = {
    "default": "",
    "dynamic": "max_batch_size: 4 dynamic_batching { }",
    "with priorities": "max_batch_size: 1 dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
    "in order": "max_batch_size: 2 dynamic_batching { preserve_ordering: true }",
    "with a delay": "max_batch_size: 3 dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 300000 }",
    "with a limit": f"max_batch_size: 0 dynamic_batching {{ default_queue_policy {{ max_queue_size: {COUNT - 1} }} }}",
    "direct": "max_batch_size: 2 sequence_batching { direct { } }",
    "oldest": "max_batch_size: 2 sequence_batching { oldest { max_candidate_sequences: 3 } }",
    "iterative": "max_batch_size: 2 sequence_batching { oldest { } iterative_sequence: true }",
}

each_scheduler = pytest.mark.parametrize("scheduler", one_in(3, SCHEDULERS.values()))


def request(number: int, scheduler: str) -> InferenceRequest:
    """One whose value is 1 for the first, which waits at the gate, else 0; a sequence of its own where there are any."""
    array = np.array([number == 0], np.float32)
    if "max_batch_size" in scheduler and "max_batch_size: 0" not in scheduler:
        array = array.reshape(1, 1)
    members = {}
    if "sequence_batching" in scheduler:
        members = {"correlation_id": number + 1, "flags": RequestFlags.SEQUENCE_START | RequestFlags.SEQUENCE_END}
    return request_of("m", {"IN": array}, **members)


class Crowd:
    """Requests to a model that holds the first of them."""

    def __init__(self, engine, gate: Gate, scheduler: str) -> None:
        self.engine = engine
        self.model = engine.repository.catalogue.find("m")
        self.gate = gate
        self._scheduler = scheduler

    async def gather(self) -> list[asyncio.Future[float]]:
        """All requests; the first one is in ``execute``, the others wait."""
        asked = [asyncio.ensure_future(self._ask(0))]
        await until(lambda: self.gate.arrivals)
        asked += [asyncio.ensure_future(self._ask(number)) for number in range(1, COUNT)]
        await until(lambda: self.model.open_requests.count == COUNT)
        return asked

    async def _ask(self, number: int) -> float:
        response = await self.engine.open(self.model.name, self.model.version).infer(request(number, self._scheduler))
        answer = float(output_array(response, "OUT").ravel()[0]) if response.error is None else response.error
        response.release()
        if isinstance(answer, InferenceError):
            raise answer
        return answer


@pytest.fixture
def crowd(repository: Path, start, tmp_path: Path, marks, scheduler: str):
    code = answering(7).replace(
        "np.array([7]", "np.array([7] if requests[0].inputs()[0].as_numpy().ndim == 1 else [[7]]"
    )
    write_model(
        repository, "m", code.replace(".as_numpy()[0]:", ".as_numpy().ravel()[0]:"), f"{CONFIG} {ONE} {scheduler}"
    )
    engine, run = start("m")
    return Crowd(engine, Gate(tmp_path / "marks", "slow"), scheduler), run


@each_scheduler
def test_unload_answers_what_waits(crowd, scheduler) -> None:
    crowd, run = crowd

    async def unload() -> None:
        asked = await crowd.gather()
        await crowd.engine.control.unload("m")
        with pytest.raises(InferenceError):
            crowd.engine.repository.catalogue.find("m")
        assert not any(one.done() for one in asked)
        crowd.gate.open()
        assert await asyncio.gather(*asked) == [7] * COUNT
        await until(lambda: crowd.model.reason == "unloaded")
        assert held(crowd.model) == {}

    run(unload())


@each_scheduler
def test_the_end_of_the_server_answers_what_waits(crowd, scheduler) -> None:
    crowd, run = crowd

    async def stop() -> None:
        asked = await crowd.gather()
        ending = asyncio.ensure_future(crowd.engine.repository.unload_all(asyncio.get_running_loop().time() + 20))
        await asyncio.sleep(0.02)
        assert not ending.done()
        crowd.gate.open()
        assert await ending
        assert await asyncio.gather(*asked) == [7] * COUNT

    run(stop())


@each_scheduler
def test_what_is_not_executed_in_time_is_told_so(crowd, scheduler) -> None:
    crowd, run = crowd

    async def stop() -> None:
        asked = await crowd.gather()
        assert not await crowd.engine.repository.unload_all(asyncio.get_running_loop().time() + 0.3)
        first, *others = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(first, InferenceError)
        assert first.message.startswith("Stub process 'm_0_0' is not healthy.")
        assert {type(each) for each in others} == {InferenceError}
        assert {each.code for each in others} == {ErrorCode.UNAVAILABLE}
        assert {each.message for each in others} == {
            "the request to model 'm' was still waiting when the server stopped"
        }
        assert held(crowd.model) == {}

    run(stop())
