"""Calls split, which answers in parts, and adds the parts up while they come."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "VALUES")
        call = pb_utils.InferenceRequest(model_name="split", inputs=[values], requested_output_names=["PART"])
        total, parts = 0.0, 0
        for response in call.exec(decoupled=True):
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            part = pb_utils.get_output_tensor_by_name(response, "PART")
            if part is not None:  # a model that ends its answers with nothing but the final flag ends with None here
                total += float(part.as_numpy().sum())
                parts += 1
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SUM", np.array([total], dtype=np.float32)),
                pb_utils.Tensor("PARTS", np.array([parts], dtype=np.int32)),
            ]
        )
