"""SCORES = FEATURES @ W + b with a torch layer; tensors pass between server and torch without a copy."""

import json

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.layer = torch.nn.Linear(4, 2)
        with torch.no_grad():
            # A trained model would load its weights here, from files beside model.py.
            self.layer.weight.copy_(torch.arange(8, dtype=torch.float32).reshape(2, 4))
            self.layer.bias.fill_(float(parameters["bias"]["string_value"]))

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "FEATURES")
            features = from_dlpack(tensor.to_dlpack())  # a torch tensor over the same memory
            with torch.inference_mode():
                scores = self.layer(features)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("SCORES", scores)]))
        return responses
