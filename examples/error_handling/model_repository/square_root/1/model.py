"""ROOTS = the square roots of NUMBERS. A request with a negative number fails; the others of its batch do not.

TOGETHER is how many requests came in the same call of `execute`.
"""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        together = pb_utils.Tensor("TOGETHER", np.array([[len(requests)]], dtype=np.int32))
        return [self.answer(request, together) for request in requests]

    def answer(self, request, together):
        numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
        if (numbers < 0).any():
            reason = f"{numbers.min():g} has no square root that is a real number"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor("ROOTS", np.sqrt(numbers)), together])
