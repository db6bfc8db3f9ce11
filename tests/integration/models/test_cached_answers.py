"""Requests that go away, or models that do, while the response cache is being asked."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.model.cache.response_cache import LocalCache
from tests.support.engine import engine_on, input_tensor, output_array
from tests.support.repositories import IDENTITY, identity_config, write_model

LARGE = np.arange(2_000_000, dtype=np.float32)  # digested in a thread
SMALL = LARGE[:10]


def request(array: np.ndarray) -> InferenceRequest:
    return InferenceRequest("m", inputs=[input_tensor("IN", array)])


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["small", "large"])
def test_a_request_that_is_cancelled_while_it_is_looked_up(tmp_path: Path, array: np.ndarray) -> None:
    async def main() -> None:
        cache = LocalCache(100_000_000)
        async with engine_on(tmp_path, cache=cache) as engine:
            model = engine.repository.catalogue.find("m")
            response = await engine.open(model.name, model.version).infer(request(array))
            output_array(response, "OUT")
            response.release()
            answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
            pending = engine.submit(model, request(array), answer.set_result)  # which a second answer would break
            pending.cancel()
            assert not answer.done()  # never from inside the calls
            cancelled = await answer
            assert cancelled.error is not None
            assert cancelled.error.code is ErrorCode.CANCELLED
            again = await engine.open(model.name, model.version).infer(request(array))
            assert (output_array(again, "OUT") == array).all()
            assert cache.figures.hits == 2
            assert model.statistics.cache_hit_count == 1  # one that nobody waited for answered nothing
            assert model.statistics.execution_count == 1

    write_model(tmp_path, "m", IDENTITY, identity_config(extra="response_cache { enable: true }"))
    asyncio.run(main())


def test_what_is_kept_is_no_stubs_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine_on(tmp_path, cache=LocalCache(100_000_000)) as engine:
            model = engine.repository.catalogue.find("m")
            for value in (1, 2):
                response = await engine.open(model.name, model.version).infer(request(LARGE + value))
                response.release()
            for value in (1, 2):
                response = await engine.open(model.name, model.version).infer(request(LARGE + value))
                assert (output_array(response, "OUT") == LARGE + value).all()
                assert all(type(output.data) is bytes for output in response.outputs)
            assert model.statistics.execution_count == 2

    write_model(tmp_path, "m", IDENTITY, identity_config(extra="response_cache { enable: true }"))
    asyncio.run(main())


def test_unloading_waits_for_what_is_looked_up(tmp_path: Path) -> None:
    async def main() -> None:
        answers: list[InferenceResponse] = []
        async with engine_on(tmp_path, cache=LocalCache(100_000_000)) as engine:
            engine.submit(engine.repository.catalogue.find("m"), request(LARGE), answers.append)
        (answer,) = answers
        assert (output_array(answer, "OUT") == LARGE).all()

    write_model(tmp_path, "m", IDENTITY, identity_config(extra="response_cache { enable: true }"))
    asyncio.run(main())
