"""Brings requests to a decoupled model, and tells all that it answers."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Calls the model that a request names, and tells in one document all that it answers."""

    def execute(self, requests):
        (request,) = requests
        call = pb_utils.InferenceRequest(
            model_name=json.loads(request.parameters())["target"], inputs=request.inputs(), requested_output_names=[]
        )
        told = [tell(response) for response in call.exec(decoupled=True)]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([json.dumps(told)], object))])]


def tell(response):
    if response.has_error():
        return {"error": response.error().message(), "code": int(response.error().code())}
    told = {"parameters": json.loads(response.parameters() or "{}")}
    for tensor in response.output_tensors():
        values = tensor.as_numpy()
        told[tensor.name()] = [v.decode() for v in values] if values.dtype == object else values.tolist()
    return told
