"""RESULT = the median of VALUES."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        if values.size == 0:
            reason = "no values have no median"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.median(values, keepdims=True))])
