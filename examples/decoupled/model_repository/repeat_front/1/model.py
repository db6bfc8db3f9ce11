"""Calls repeat and makes one answer of all its responses, for clients that can take only one."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        call = pb_utils.InferenceRequest(
            model_name="repeat", inputs=request.inputs(), requested_output_names=["INDEX", "VALUE"]
        )
        values, after_ms = [], []
        began = time.monotonic()
        for response in call.exec(decoupled=True):
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            value = pb_utils.get_output_tensor_by_name(response, "VALUE")
            if value is not None:  # the last response is empty: repeat sends its final flag alone
                values.append(value.as_numpy()[0])
                after_ms.append((time.monotonic() - began) * 1000)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("VALUES", np.array(values, dtype=np.int32)),
                pb_utils.Tensor("AFTER_MS", np.array(after_ms, dtype=np.float32)),
            ]
        )
