"""Runs the tests of its own file in `execute`, which imports it once more, as `model`."""

import json
import unittest

import numpy as np
import triton_python_backend_utils as pb_utils


class ModelTest(unittest.TestCase):
    def test_tensor(self):
        tensor = pb_utils.Tensor("x", np.arange(4))
        assert (tensor.name(), tensor.shape()) == ("x", [4])

    def test_subject(self):
        assert __name__ == "model"


class TritonPythonModel:
    def execute(self, requests):
        result = unittest.main("model", exit=False).result
        counts = {"ran": result.testsRun, "failures": len(result.failures), "errors": len(result.errors)}
        document = np.array([json.dumps(counts)], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", document)]) for _ in requests]
