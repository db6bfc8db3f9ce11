"""Sends each word of TEXT in its own response."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Answers through each request's sender, and returns nothing."""
        for request in requests:
            self.respond(request)

    def respond(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        try:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            for word in text.item().decode().split():
                if request.is_cancelled():
                    break  # the client has left
                output = pb_utils.Tensor("WORD", np.array([word.encode()], np.object_))
                sender.send(pb_utils.InferenceResponse([output]))
        finally:
            # Exactly once for each request, even after an error.
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
