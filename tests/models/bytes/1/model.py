"""Answers bytes as they came."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
