"""Answers every input ``IN*`` as output ``OUT*``."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(t.name().replace("IN", "OUT"), t.as_numpy()) for t in request.inputs()]
            )
            for request in requests
        ]
