"""Sends VALUES back in parts of up to three, one response each."""

import triton_python_backend_utils as pb_utils

PART = 3


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
            sender = request.get_response_sender()
            for start in range(0, len(values), PART):
                part = pb_utils.Tensor("PART", values[start : start + PART])
                sender.send(pb_utils.InferenceResponse([part]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
