"""Multiplies X by the parameter "factor" of config.pbtxt."""

from __future__ import annotations

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Runs once, before the first request: load weights here."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.factor = np.float32(parameters["factor"]["string_value"])

    def execute(
        self,
        requests: list[pb_utils.InferenceRequest],
    ) -> list[pb_utils.InferenceResponse]:
        """Returns one response for each request, in the same order."""
        return [self.respond(request) for request in requests]

    def respond(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        # The first dimension is the batch: X has the shape [batch, length].
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        if not np.isfinite(x).all():
            # An error fails this request only.
            error = pb_utils.TritonError(
                "X must be finite",
                pb_utils.TritonError.INVALID_ARG,
            )
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * self.factor)])

    def finalize(self) -> None:
        """Runs once, after the last request: free what Python does not."""
