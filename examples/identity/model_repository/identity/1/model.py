"""OUTPUT0 = INPUT0, whatever its length."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            received = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            # as_numpy() is a view of the request's memory: nothing has been copied so far.
            sent = pb_utils.Tensor("OUTPUT0", received.as_numpy())
            responses.append(pb_utils.InferenceResponse(output_tensors=[sent]))
        return responses
