import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.convert(request)]) for request in requests]

    def convert(self, request):
        celsius = pb_utils.get_input_tensor_by_name(request, "CELSIUS").as_numpy()
        return pb_utils.Tensor("CONVERTED", celsius + np.float32(273.15))
