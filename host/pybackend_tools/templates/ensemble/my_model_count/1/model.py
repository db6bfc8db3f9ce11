"""Counts the words of a text."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(
        self,
        requests: list[pb_utils.InferenceRequest],
    ) -> list[pb_utils.InferenceResponse]:
        """Returns one response for each request, in the same order."""
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            count = np.array([len(text.item().split())], np.int32)
            tensor = pb_utils.Tensor("COUNT", count)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
