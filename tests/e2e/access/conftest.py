"""A model that tells what came with a request, and how tests ask it."""

import json
from typing import Any

import numpy as np
import pytest

from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.server import ServerProcess

TELL = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([request.parameters() or "{}"], object))])
            for request in requests
        ]
"""

INPUT = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [0.5]}
BODY: dict[str, Any] = {"inputs": [INPUT]}


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    place = tmp_path_factory.mktemp("access")
    write_model(place, "identity", IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    io = f"input [ {tensors(IN=('TYPE_FP32', [-1]))} ] output [ {tensors(TOLD=('TYPE_STRING', [1]))} ]"
    write_model(place, "tell", TELL, f'backend: "python" {io}')
    return place


def parameters_of(server: ServerProcess, headers: dict[str, str], **parameters: Any) -> dict[str, Any]:
    """The parameters that a model sees, over HTTP."""
    reply = server.infer("tell", {**BODY, "parameters": parameters}, headers)
    assert reply.status == 200, reply
    return json.loads(reply.json["outputs"][0]["data"][0])


def grpc_inputs(module: Any) -> list[Any]:
    """The inputs of a request for tritonclient's module."""
    tensor = module.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.array([0.5], np.float32))
    return [tensor]
