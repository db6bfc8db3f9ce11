import numpy as np
import triton_python_backend_utils as pb_utils

PER_SQUARE_METRE = {b"Bern": 9000.0, b"Bonn": 4000.0}


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            area = pb_utils.get_input_tensor_by_name(request, "area").as_numpy()
            city = pb_utils.get_input_tensor_by_name(request, "city").as_numpy()
            rates = np.array([[PER_SQUARE_METRE.get(name, 2000.0)] for name in city[:, 0]])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("price", area * rates)]))
        return responses
