"""Tells in three outputs what it sees of a request."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        about = {
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "requested": sorted(request.requested_output_names()),
            "inputs": {tensor.name(): [tensor.as_numpy().dtype.name, tensor.shape()] for tensor in request.inputs()},
        }
        outputs = [pb_utils.Tensor(name, np.array([json.dumps(about)], object)) for name in ("OUT0", "OUT1", "OUT2")]
        return pb_utils.InferenceResponse(outputs, parameters={"answered": True, "count": 7, "by": "describe"})
