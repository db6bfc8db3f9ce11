"""Calls another model until its answer is at least 100, and returns that answer."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

CALLED = "my_model_scale"


class TritonPythonModel:
    def execute(
        self,
        requests: list[pb_utils.InferenceRequest],
    ) -> list[pb_utils.InferenceResponse]:
        """Returns one response for each request, in the same order."""
        return [self.respond(request) for request in requests]

    def respond(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        x = pb_utils.get_input_tensor_by_name(request, "X")
        if (x.as_numpy() <= 0).any():
            error = pb_utils.TritonError(
                "X must be positive",
                pb_utils.TritonError.INVALID_ARG,
            )
            return pb_utils.InferenceResponse(error=error)
        y = x.as_numpy()
        while (y < 100).any():
            call = pb_utils.InferenceRequest(
                model_name=CALLED,
                inputs=[pb_utils.Tensor("X", y)],
                requested_output_names=["Y"],
            )
            answer = call.exec()
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
            y = pb_utils.get_output_tensor_by_name(answer, "Y").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])
