"""Adds up the values of each sequence."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # All requests of a sequence come to the same instance.
        self.totals: dict[int, float] = {}

    def execute(
        self,
        requests: list[pb_utils.InferenceRequest],
    ) -> list[pb_utils.InferenceResponse]:
        """Returns one response for each request, in the same order."""
        return [self.respond(request) for request in requests]

    def respond(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        sequence = scalar(request, "CORRID")
        if scalar(request, "START"):
            self.totals[sequence] = 0.0
        self.totals[sequence] += scalar(request, "VALUE")
        total = self.totals[sequence]
        if scalar(request, "END"):
            del self.totals[sequence]
        output = pb_utils.Tensor("TOTAL", np.array([[total]], np.float32))
        return pb_utils.InferenceResponse([output])


def scalar(request: pb_utils.InferenceRequest, name: str) -> float:
    """The only element of an input, or of a control tensor of the configuration."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
