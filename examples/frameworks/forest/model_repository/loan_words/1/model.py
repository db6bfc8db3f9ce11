import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            risk = pb_utils.get_input_tensor_by_name(request, "RISK").as_numpy()
            words = np.select([risk < 0.2, risk < 0.8], ["approve", "review"], "decline").astype(object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("DECISION", words)]))
        return responses
