"""The same for all requests, and for the number and its successor, at once."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.target = "countdown_to"

    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        number = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        calls = [
            pb_utils.InferenceRequest(
                model_name=self.target, inputs=[pb_utils.Tensor("IN", value)], requested_output_names=["OUT"]
            )
            for value in (number, number + 1)
        ]
        streams = await asyncio.gather(*[call.async_exec(decoupled=True) for call in calls])
        total = 0
        for stream in streams:
            for infer_response in stream:
                if infer_response.has_error():
                    return pb_utils.InferenceResponse(error=infer_response.error())
                total += sum(int(tensor.as_numpy()[0]) for tensor in infer_response.output_tensors())
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([total], np.int32))])
