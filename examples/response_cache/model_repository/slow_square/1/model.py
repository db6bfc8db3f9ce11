"""SQUARE = X * X, which takes this model half a second; EXECUTION = how often it has done that."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.executions += 1
            time.sleep(0.5)
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            execution = np.array([self.executions], dtype=np.int32)
            outputs = [pb_utils.Tensor("SQUARE", x * x), pb_utils.Tensor("EXECUTION", execution)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
