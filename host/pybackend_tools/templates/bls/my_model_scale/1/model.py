"""Multiplies X by 10."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(
        self,
        requests: list[pb_utils.InferenceRequest],
    ) -> list[pb_utils.InferenceResponse]:
        """Returns one response for each request, in the same order."""
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            y = pb_utils.Tensor("Y", x * x.dtype.type(10))
            responses.append(pb_utils.InferenceResponse([y]))
        return responses
