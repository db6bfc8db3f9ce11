"""Processes that make place for new ones: what becomes of sequences that do not end."""

import asyncio

import numpy as np
import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, RequestFlags
from pybackend.model import python_model
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor, output_array
from tests.support.model_control import until
from tests.support.repositories import identity_config, write_model

COUNTS = """
class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        self.count += len(requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.count], np.float32))]) for _ in requests]
"""
ONCE = 'parameters { key: "RESTART_AFTER_REQUESTS" value { string_value: "2" } } sequence_batching { }'


async def answer(engine, sequence: int, flags: int = 0) -> float:
    """How many requests its process has had. Raises InferenceError: it has none."""
    request = InferenceRequest(
        "counts", inputs=[input_tensor("IN", np.zeros(1, np.float32))], correlation_id=sequence, flags=flags
    )
    response = await engine.open("counts").infer(request)
    if response.error is not None:
        raise response.error
    try:
        return float(output_array(response, "OUT")[0])
    finally:
        response.release()


def test_sequences_at_a_renewed_process_have_their_time(tmp_path, monkeypatch, caplog):
    """Then they are told why they cannot go on, and the process ends."""
    monkeypatch.setattr(python_model, "SEQUENCES_LIMIT_S", 0.0)
    write_model(tmp_path, "counts", COUNTS, identity_config(extra=ONCE))

    async def renew(engine) -> None:
        assert await answer(engine, 1, RequestFlags.SEQUENCE_START) == 1
        assert await answer(engine, 1) == 2
        model = engine.repository.catalogue.find("counts")
        before = model.instances[0]
        engine.repository.life_cycle.trim()  # the server does it once a second
        await until(lambda: model.instances[0] is not before)
        assert await answer(engine, 2, RequestFlags.SEQUENCE_START) == 1
        await until(lambda: before.pid is None)
        with pytest.raises(InferenceError) as refused:
            await answer(engine, 1)
        assert refused.value.code is ErrorCode.UNAVAILABLE
        assert refused.value.message.startswith(
            "sequence 1 of model 'counts' is ended: its process was renewed, and it had not ended 0 s later. "
        )
        assert await answer(engine, 2) == 2

    with running_engine(tmp_path) as (engine, run):
        run(asyncio.wait_for(renew(engine), 60))
    assert "instance 'counts_0' was renewed, and its sequences that go on are cut short" in caplog.text
