"""What tests of loading and unloading share: models that tell their lives, and an engine that loads on request."""

import asyncio
import textwrap

import numpy as np
import pytest

from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.model.model import ModelState
from tests.support.engine import input_tensor, output_array
from tests.support.gates import GATE
from tests.support.repositories import tensors

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [-1]))} ]
"""
ALL_VERSIONS = CONFIG + "version_policy { all {} }"


def answering(number: float) -> str:
    """A model that answers each request with a number; one that says 1 waits at the gate ``slow`` before."""
    return f"""
    import os, time

    {textwrap.indent(GATE, "    ").strip()}

    class TritonPythonModel:
        def initialize(self, args):
            self.directory = args["model_repository"]
            with open(os.path.join(os.environ["MARKS"], args["model_name"]), "a") as marks:
                print("begin", {number}, args["model_version"], file=marks)

        def execute(self, requests):
            if requests[0].inputs()[0].as_numpy()[0]:
                pass_gate(os.environ["MARKS"], "slow")
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([{number}], np.float32))]) for _ in requests]

        def finalize(self):
            with open(os.path.join(os.environ["MARKS"], os.path.basename(self.directory)), "a") as marks:
                print("end", {number}, file=marks)
    """


BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("the weights are missing")
"""


async def answer(engine, name, slow=0, version=""):
    inputs = [input_tensor("IN", np.array([slow], np.float32))]
    response = await engine.open(name, version).infer(InferenceRequest(name, inputs=inputs))
    number = float(output_array(response, "OUT")[0])
    response.release()
    return number


def refusal(run, coroutine):
    """The error of a change that fails."""
    with pytest.raises(InferenceError) as refused:
        run(coroutine)
    return refused.value


async def until(condition):
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  it is the loop's own doings that are waited for
            await asyncio.sleep(0.01)


async def gone(engine, model):
    """Wait until a version that was replaced or unloaded has ended."""
    await until(lambda: model.state is ModelState.UNAVAILABLE)
