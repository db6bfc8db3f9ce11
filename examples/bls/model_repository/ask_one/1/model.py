"""Calls the model that the client names, waits for it, and passes its answer on, be it a result or an error."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "MODEL").as_numpy()[0].decode("utf-8")
        call = pb_utils.InferenceRequest(
            model_name=name,
            inputs=[pb_utils.get_input_tensor_by_name(request, "VALUES")],
            requested_output_names=["RESULT"],
        )
        # A failed call raises nothing: its response has the error.
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(response, "RESULT")])
