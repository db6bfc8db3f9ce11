"""A pipeline as a model: tokenize, ask for one token after the other until the end, detokenize."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.default_max_tokens = int(parameters["default_max_tokens"]["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                responses.append(self.complete(request))
            except pb_utils.TritonModelException as failed:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(failed))))
        return responses

    def complete(self, request):
        limit = pb_utils.get_input_tensor_by_name(request, "MAX_TOKENS")
        limit = self.default_max_tokens if limit is None else int(limit.as_numpy()[0, 0])
        ids = self.run("tokenize", [pb_utils.get_input_tensor_by_name(request, "TEXT")], "INPUT_IDS").as_numpy()
        made = 0
        while made < limit:
            logits = self.run("next_token", [pb_utils.Tensor("INPUT_IDS", ids)], "LOGITS").as_numpy()
            best = logits.argmax(axis=1)
            if not best.any():
                break
            ids = np.concatenate([ids, best[:, None]], axis=1)
            made += 1
        text = self.run("detokenize", [pb_utils.Tensor("INPUT_IDS", ids)], "TEXT")
        return pb_utils.InferenceResponse([text, pb_utils.Tensor("TOKENS", np.array([[made]], dtype=np.int32))])

    def run(self, model_name, inputs, output):
        response = pb_utils.InferenceRequest(
            model_name=model_name, inputs=inputs, requested_output_names=[output]
        ).exec()
        if response.has_error():
            raise pb_utils.TritonModelException(f"{model_name}: {response.error().message()}")
        return pb_utils.get_output_tensor_by_name(response, output)
