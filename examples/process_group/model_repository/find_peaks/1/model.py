"""PLACES = where a value is higher than its two neighbours."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            smooth = pb_utils.get_input_tensor_by_name(request, "SMOOTH").as_numpy()
            middle = smooth[1:-1]
            places = np.flatnonzero((middle > smooth[:-2]) & (middle > smooth[2:])) + 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("PLACES", places.astype(np.int64))]))
        return responses
