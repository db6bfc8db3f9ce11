"""Runs requests that waited together as one array."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

COST_S = 0.005
"""What one execution takes here, however large its batch is: that is why batching pays."""


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        doubled = np.concatenate(arrays) * 2
        time.sleep(COST_S)

        responses, start = [], 0
        for array in arrays:
            end = start + len(array)
            batch = np.full((len(array), 1), len(requests), dtype=np.int32)
            outputs = [pb_utils.Tensor("OUTPUT", doubled[start:end]), pb_utils.Tensor("BATCH", batch)]
            responses.append(pb_utils.InferenceResponse(outputs))
            start = end
        return responses
