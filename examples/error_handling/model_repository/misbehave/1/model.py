"""Does what a model must not do, or what HOW asks for otherwise."""

import sys

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = [self.answer(request) for request in requests]
        if responses[0] == "list missing":
            return None
        if responses[0] == "list too long":
            return [None] * (len(requests) + 1)
        return responses

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "HOW")
        how = tensor.as_numpy()[0].decode("utf-8")
        if how == "ValueError":
            raise ValueError("a mistake in the model")
        if how == "TritonModelException":
            raise pb_utils.TritonModelException("something that the model found out")
        if how == "SystemExit":
            sys.exit(3)
        if how == "no input":
            return pb_utils.get_input_tensor_by_name(request, "HOV").as_numpy()
        if how in {"text", "list missing", "list too long"}:
            return how
        return pb_utils.InferenceResponse([pb_utils.Tensor("DONE", tensor.as_numpy())])
