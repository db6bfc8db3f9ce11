"""A model that is given up: its reason has the last lines that it said."""

import asyncio
import re

import numpy as np
import pytest

from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.model.model import ModelState
from tests.support.engine import engine_on, input_tensor
from tests.support.model_control import until
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
            model = engine.repository.catalogue.find("dying")
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
                    engine.repository.catalogue.find("dying")
            assert model.failure.__traceback__ is None  # it would keep the frames of all who asked
            return model.reason

    reason = asyncio.run(scenario())
    assert "exited with status 7" in reason
    assert reason.endswith("\nIts last lines:\n  looking at the request\n  which is odd\n  fatal: no more")


DEATHS = {
    # What the model does when it is imported, how its process ends, and what it says.
    "exit": (
        "import os, sys\nprint('no seat is left.', file=sys.stderr)\nos._exit(3)",
        "exited with status 3. Its last line: no seat is left.",
    ),
    "traceback": (
        "import os, traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\n    os._exit(1)",
        "exited with status 1. Its last line: ZeroDivisionError: division by zero.",
    ),
    # The socket is closed long before the process ends.
    "socket": (
        "import os, time\nos.closerange(3, 100)\ntime.sleep(0.05)\nprint('no device')\nos._exit(4)",
        "exited with status 4. Its last line: no device.",
    ),
    "signal": (
        "import ctypes\nctypes.string_at(0)",
        r"was killed by signal 11 \(SIGSEGV\). It was at model.py:\d+ in <module>, which calls __init__.py:\d+ in string_at.",
    ),
    "silence": ("import os\nos._exit(5)", "exited with status 5."),
}


def test_a_process_that_dies_at_its_start_is_quoted(tmp_path):
    for name, (code, _) in DEATHS.items():
        write_model(tmp_path, name, code, identity_config())

    async def scenario():
        async with engine_on(tmp_path) as engine:
            return {model.name: model.reason for model in engine.repository.catalogue.models()}

    reasons = asyncio.run(scenario())
    for name, (_, end) in DEATHS.items():
        expected = rf"Internal: Stub process '{name}_0' is not healthy\. The process {end}"
        assert re.fullmatch(expected, reasons[name]), reasons[name]


def test_a_restart_that_fails_is_quoted_too(tmp_path):
    once = """
import os

class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], "started")
        if os.path.exists(path):
            print("the device is lost")
            os._exit(6)
        open(path, "w").close()

    def execute(self, requests):
        print("about a client")
        os._exit(7)
"""
    limits = 'parameters { key: "RESTART_LIMIT" value { string_value: "1" } }'
    write_model(tmp_path, "once", once, identity_config(extra=limits))

    async def scenario():
        async with engine_on(tmp_path) as engine:
            model = engine.repository.catalogue.find("once")
            request = InferenceRequest(
                model_name="once", inputs=[input_tensor("IN", np.ones(1, np.float32))], requested_outputs=[]
            )
            response = await engine.open("once").infer(request)
            assert response.error.message == "Stub process 'once_0' is not healthy. The process exited with status 7."
            await until(lambda: model.failure is not None)
            return model.failure.message

    assert asyncio.run(scenario()).endswith("The process exited with status 6. Its last line: the device is lost.")
