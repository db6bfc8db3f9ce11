import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            amount = pb_utils.get_input_tensor_by_name(request, "amount").as_numpy()
            risk = amount / (amount + 1000)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("risk", risk)]))
        return responses
