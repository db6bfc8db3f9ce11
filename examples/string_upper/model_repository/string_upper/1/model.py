"""UPPER = TEXT in capitals, element by element."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()  # elements are `bytes`
        try:
            upper = [element.decode("utf-8").upper() for element in text.ravel()]
        except UnicodeDecodeError as error:
            # Only this request fails; others of the same call are answered as usual.
            reason = f"TEXT must be UTF-8: {error}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, pb_utils.TritonError.INVALID_ARG))
        # `str` elements are sent as UTF-8; an object array keeps elements of any length.
        output = pb_utils.Tensor("UPPER", np.array(upper, dtype=np.object_).reshape(text.shape))
        return pb_utils.InferenceResponse(output_tensors=[output])
