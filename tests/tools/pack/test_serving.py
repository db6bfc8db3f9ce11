"""Environments with different Pythons, packed from a channel, and models in them that work together."""

import sys

import numpy as np
import pytest

from tests.support.conda_channel import channel_minors
from tests.support.ensembles import step, write_ensemble
from tests.support.inference import infer
from tests.support.packed_environments import conda_environment
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

APPENDS_ITS_VERSION = """
import sys

class TritonPythonModel:
    def execute(self, requests):
        version = np.array([sys.version_info[1]], dtype=np.int32)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.append(request.inputs()[0].as_numpy(), version))])
            for request in requests
        ]
"""

LOAD_DEADLINE_S = 200
"""Two environments are unpacked first."""

INT32 = ("TYPE_INT32", [-1])


def test_one_ensemble_over_three_pythons(tmp_path):
    minors = channel_minors()
    if len(minors) < 2:
        pytest.skip("there is only one CPython on this machine")
    environments = [conda_environment(minor) for minor in minors]
    body = f'backend: "python"\ninput [ {tensors(IN=INT32)} ]\noutput [ {tensors(OUT=INT32)} ]\n'
    repository = tmp_path / "models"
    for name, archive in (("first", environments[0]), ("own", None), ("last", environments[1])):
        parameter = (
            f'parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{archive}" }} }}' if archive else ""
        )
        write_model(repository, name, APPENDS_ITS_VERSION, body + parameter)
    steps = [
        step("first", {"IN": "IN"}, {"OUT": "a"}),
        step("own", {"IN": "a"}, {"OUT": "b"}),
        step("last", {"IN": "b"}, {"OUT": "OUT"}),
    ]
    write_ensemble(repository, "all_three", steps, tensors(IN=INT32), tensors(OUT=INT32))
    with serving(repository, flags=(f"--environment-cache-directory={tmp_path / 'cache'}",), ready=False) as server:
        server.wait_for("Started HTTPService", LOAD_DEADLINE_S)
        server.wait_ready()
        for name, minor in (("first", minors[0]), ("own", sys.version_info.minor), ("last", minors[1])):
            assert infer(server, name, {"IN": np.array([1], np.int32)})["OUT"].tolist() == [1, minor]
        answer = infer(server, "all_three", {"IN": np.array([0], np.int32)})["OUT"]
        assert answer.tolist() == [0, minors[0], sys.version_info.minor, minors[1]]
