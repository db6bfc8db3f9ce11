"""Answers the number n with n responses: 1, 2, ... n."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            limit = int(pb_utils.get_input_tensor_by_name(request, "LIMIT").as_numpy()[0])
            for number in range(1, limit + 1):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
