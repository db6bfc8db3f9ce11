"""Replaces everything but letters by blanks."""

from __future__ import annotations

import re

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
            clean = re.sub(r"[\W\d_]", " ", text.item().decode())
            output = np.array([clean.encode()], np.object_)
            tensor = pb_utils.Tensor("CLEAN", output)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
