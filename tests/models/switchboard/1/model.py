"""Hands its inputs to the model that the client names, and its outputs back."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.model_config = json.loads(args["model_config"])

    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [pb_utils.get_input_tensor_by_name(request, name) for name in ("INPUT0", "INPUT1")]
            wanted = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME")
            model_name = wanted.as_numpy()[0].decode("utf-8")
            infer_request = pb_utils.InferenceRequest(
                model_name=model_name, requested_output_names=["OUTPUT0", "OUTPUT1"], inputs=inputs
            )
            infer_response = infer_request.exec()
            if infer_response.has_error():
                # Fails the whole batch, as a model may choose to.
                raise pb_utils.TritonModelException(infer_response.error().message())
            responses.append(pb_utils.InferenceResponse(output_tensors=infer_response.output_tensors()))
        return responses

    def finalize(self):
        pb_utils.Logger.log_info("switchboard: cleaning up")
