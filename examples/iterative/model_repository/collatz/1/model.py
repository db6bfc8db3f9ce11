"""Halves even numbers and triples odd ones, plus one, until 1 is reached: one step in each execution.

Requests that need few steps leave soon; new ones join the batch at any time, while others are in the middle.
"""

import numpy as np
import triton_python_backend_utils as pb_utils


def scalar(request, name):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])


class TritonPythonModel:
    def initialize(self, args):
        self.running = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = scalar(request, "CORRID")
            if scalar(request, "START"):
                self.running[key] = (scalar(request, "NUMBER"), 0, 0)
            number, steps, shared = self.running[key]
            shared += len(requests) > 1
            if number > 1:
                number = 3 * number + 1 if number % 2 else number // 2
                self.running[key] = (number, steps + 1, shared)
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
                continue
            del self.running[key]
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("STEPS", np.array([[steps]], dtype=np.int64)),
                        pb_utils.Tensor("SHARED", np.array([[shared]], dtype=np.int64)),
                    ]
                )
            )
        return responses
