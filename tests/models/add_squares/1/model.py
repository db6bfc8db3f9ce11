"""Adds up whatever `countdown_to` answers: the square of the number."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            infer_request = pb_utils.InferenceRequest(
                model_name="countdown_to",
                inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
                requested_output_names=["OUT"],
            )
            total = 0
            infer_responses = infer_request.exec(decoupled=True)
            for infer_response in infer_responses:
                if infer_response.has_error():
                    raise pb_utils.TritonModelException(infer_response.error().message())
                if len(infer_response.output_tensors()) > 0:  # the last one may be empty
                    total += pb_utils.get_output_tensor_by_name(infer_response, "OUT").as_numpy()[0]
            outputs = [pb_utils.Tensor("SUM", np.array([total], dtype=np.int32))]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
