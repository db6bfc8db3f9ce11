"""A model that is given up: its reason has the last lines that it said."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.model.model import ModelState
from tests.support.engine import engine_on, input_tensor
from tests.support.repositories import identity_config, write_model

DYING = """
import os

class TritonPythonModel:
    def execute(self, requests):
        print("looking at the request")
        pb_utils.Logger.log_verbose("which is odd")
        os.write(2, b"fatal: no more")
        os._exit(7)
"""


def test_reason_of_a_model_that_is_given_up(tmp_path):
    limit = 'parameters { key: "RESTART_LIMIT" value { string_value: "1" } }'
    write_model(tmp_path, "dying", DYING, identity_config(extra=limit))

    async def scenario():
        async with engine_on(tmp_path) as engine:
            model = engine.repository.find("dying")
            async with asyncio.timeout(60):
                while model.state is ModelState.READY:
                    request = InferenceRequest(
                        model_name="dying", inputs=[input_tensor("IN", np.ones(1, np.float32))], requested_outputs=[]
                    )
                    try:
                        response = await engine.open(model.name, model.version).infer(request)
                    except Exception as error:
                        message = str(error)
                    else:
                        message = response.error.message
                        response.release()
                    assert "looking at the request" not in message  # it may be about another client
            for _ in range(2):
                with pytest.raises(InferenceError, match="has no instance that can serve"):
                    engine.repository.find("dying")
            assert model.failure.__traceback__ is None  # it would keep the frames of all who asked
            return model.reason

    reason = asyncio.run(scenario())
    assert "exited with status 7" in reason
    assert reason.endswith("\nIts last lines:\n  looking at the request\n  which is odd\n  fatal: no more")
