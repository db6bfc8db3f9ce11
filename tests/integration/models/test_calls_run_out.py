"""Calls whose responses do not fit into the caller's memory: an error, after which nothing is held that nobody can use."""

import asyncio

import numpy as np

from pybackend.errors import ErrorCode
from pybackend.inference.request import InferenceRequest
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor, output_array
from tests.support.repositories import tensors, write_model

KIB, MIB = 1024, 1024 * 1024

GIVER = """
class TritonPythonModel:
    def execute(self, requests):
        sizes = requests[0].inputs()[0].as_numpy()
        outputs = [pb_utils.Tensor("OUT%d" % n, np.zeros(size, np.uint8)) for n, size in enumerate(sizes)]
        return [pb_utils.InferenceResponse(outputs)]
"""

TAKER = """
class TritonPythonModel:
    def execute(self, requests):
        sizes = pb_utils.get_input_tensor_by_name(requests[0], "SIZES")
        call = pb_utils.InferenceRequest(model_name="giver", inputs=[sizes], requested_output_names=[])
        response = call.exec()
        if response.has_error():
            return [pb_utils.InferenceResponse(error=response.error())]
        taken = sum(tensor.as_numpy().nbytes for tensor in response.output_tensors())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TAKEN", np.array([taken]))])]
"""


def write_models(repository):
    outputs = {f"OUT{n}": ("TYPE_UINT8", [-1]) for n in range(4)}
    write_model(
        repository,
        "giver",
        GIVER,
        f"""
        backend: "python"
        input [ {tensors(SIZES=("TYPE_INT64", [-1]))} ]
        output [ {tensors(**outputs)} ]
        """,
    )
    write_model(
        repository,
        "taker",
        TAKER,
        f"""
        backend: "python"
        input [ {tensors(SIZES=("TYPE_INT64", [-1]), BALLAST=("TYPE_UINT8", [-1]))} ]
        output [ {tensors(TAKEN=("TYPE_INT64", [1]))} ]
        """,
    )


def test_a_response_that_does_not_fit_leaves_nothing_behind(tmp_path):
    """Its first outputs fit, its last one does not: the first ones are nobody's then."""
    write_models(tmp_path)
    with running_engine(tmp_path, memory_limit_bytes=MIB) as (engine, run):
        model = engine.repository.catalogue.find("taker")

        def take(*sizes):
            request = InferenceRequest(
                "taker",
                inputs=[
                    input_tensor("SIZES", np.array(sizes, np.int64)),
                    input_tensor("BALLAST", np.zeros(300 * KIB, np.uint8)),
                ],
            )
            return run(asyncio.wait_for(engine.open(model.name, model.version).infer(request), 60))

        for _ in range(5):
            response = take(450 * KIB, 450 * KIB)
            assert response.error.code is ErrorCode.UNAVAILABLE
            assert "no input memory left for model 'taker'" in response.error.message
            response.release()
        response = take(200 * KIB, 200 * KIB, 200 * KIB)
        assert output_array(response, "TAKEN") == [600 * KIB]
        response.release()
