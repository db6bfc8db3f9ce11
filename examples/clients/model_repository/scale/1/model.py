"""Multiplies X by the request's parameter `factor`, or by 2."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            factor = json.loads(request.parameters() or "{}").get("factor", 2)
            y = pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * factor
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y.astype("float32"))]))
        return responses
