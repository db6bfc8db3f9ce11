"""Adds up the numbers of each sequence: what the requests of one client build on each other."""

import numpy as np
import triton_python_backend_utils as pb_utils


def scalar(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]


class TritonPythonModel:
    def initialize(self, args):
        self.instance = args["model_instance_name"]
        self.totals = {}

    def execute(self, requests):
        ready = [request for request in requests if scalar(request, "READY")]
        responses = []
        for request in requests:
            key, value = scalar(request, "CORRID"), scalar(request, "VALUE")
            total = 0
            if scalar(request, "READY"):  # else it only fills a slot in which nothing is to be done
                total = value if scalar(request, "START") else self.totals[key] + value
                self.totals[key] = total
                if scalar(request, "END"):
                    del self.totals[key]
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("TOTAL", np.array([[total]], dtype=np.int32)),
                        pb_utils.Tensor("BATCH", np.array([[len(ready)]], dtype=np.int32)),
                        pb_utils.Tensor("INSTANCE", np.array([[self.instance]], dtype=object)),
                    ]
                )
            )
        return responses
