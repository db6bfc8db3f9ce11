import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
            for count in range(1, len(numbers) + 1):
                mean = np.array([numbers[:count].mean()], dtype=np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("MEAN", mean)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
