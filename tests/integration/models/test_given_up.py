"""Models that were given up: they are tried again, in time and when a request needs them."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.model.model import Model, ModelState
from tests.integration.models.conftest import Run, running_engine
from tests.support.engine import input_tensor, output_array
from tests.support.model_control import until
from tests.support.repositories import IDENTITY, identity_config, write_model

POISONED = """
import os

class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists(os.path.join(args["model_repository"], "broken")):
            raise ValueError("the weights are missing")

    def execute(self, requests):
        for request in requests:
            if request.inputs()[0].as_numpy()[0]:
                os._exit(7)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
ENSEMBLE = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [ {
  model_name: "asked" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
} ] }
"""


def limits(retry_s: float) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in (("RESTART_LIMIT", 1), ("RESTART_RETRY_S", retry_s))
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InferenceEngine, Run, Path]]:
    repository = tmp_path_factory.mktemp("given_up")
    write_model(repository, "asked", POISONED, identity_config(extra=limits(3600)))
    write_model(repository, "timed", POISONED, identity_config(extra=limits(0.05)))
    write_model(repository, "healthy", IDENTITY, identity_config())
    (repository / "around" / "1").mkdir(parents=True)
    (repository / "around" / "config.pbtxt").write_text(ENSEMBLE)
    with running_engine(repository) as (engine, run):
        yield engine, run, repository


async def ask(engine: InferenceEngine, name: str, value: float = 0) -> float:
    """The answer of a model; a value other than 0 is poison.

    Raises:
        InferenceError: it has none.
    """
    request = InferenceRequest(
        model_name=name, inputs=[input_tensor("IN", np.full(1, value, np.float32))], requested_outputs=()
    )
    response = await engine.open(name).infer(request)
    if response.error is not None:
        raise response.error
    try:
        return float(output_array(response, "OUT")[0])
    finally:
        response.release()


async def poison(engine: InferenceEngine, model: Model) -> None:
    """Kill a model until it is given up."""
    async with asyncio.timeout(60):
        while model.state is ModelState.READY:
            with suppress(InferenceError):
                await ask(engine, model.name, 1)


def test_the_next_request_brings_it_back(lab: tuple[InferenceEngine, Run, Path]) -> None:
    engine, run, _ = lab

    async def scenario() -> None:
        model, around = engine.repository.catalogue.find("asked"), engine.repository.catalogue.find("around")
        await poison(engine, model)
        assert model.failure is not None
        assert around.state is ModelState.UNAVAILABLE
        assert await ask(engine, "healthy") == 0
        with pytest.raises(InferenceError, match=r"around.* 'asked' .*has no instance that can serve") as refused:
            await ask(engine, "around")  # its part is needed as well
        assert refused.value.code is ErrorCode.UNAVAILABLE
        await until(lambda: model.state is ModelState.READY)
        assert (model.reason, model.failure, around.state) == ("", None, ModelState.READY)
        assert await ask(engine, "around") == await ask(engine, "asked") == 0
        assert await engine.is_ready()
        # One more death is too many, as it has not lived for long.
        with pytest.raises(InferenceError, match="exited with status 7"):
            await ask(engine, "asked", 1)
        await until(lambda: model.state is ModelState.UNAVAILABLE)

    run(scenario())


def test_time_brings_it_back(lab: tuple[InferenceEngine, Run, Path]) -> None:
    engine, run, repository = lab
    broken = repository / "timed" / "broken"

    async def scenario() -> None:
        model = engine.repository.catalogue.find("timed")
        broken.touch()
        pid = model.instances[0].pid
        assert pid
        os.kill(pid, 9)
        await until(lambda: model.state is ModelState.UNAVAILABLE)
        assert "the weights are missing" in model.reason
        failed = model.failure
        await until(lambda: model.failure is not failed)  # another attempt has failed
        assert model.state is ModelState.UNAVAILABLE
        broken.unlink()
        await until(lambda: model.state is ModelState.READY)
        assert await ask(engine, "timed") == 0
        assert model.instances[0].restart_count == 1

    run(scenario())
