"""Sends square a request for each of NUMBERS, all at once.

SUMS are the responses to each request, added up. ORDER is whose response came when.
"""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
        iterators = await asyncio.gather(*(self.call(number) for number in numbers))
        sums, order = [], []
        for iterator in iterators:
            total = 0
            for response in iterator:
                if response.has_error():
                    return pb_utils.InferenceResponse(error=response.error())
                if response.output_tensors():
                    number = pb_utils.get_output_tensor_by_name(response, "NUMBER").as_numpy()[0]
                    serial = pb_utils.get_output_tensor_by_name(response, "SERIAL").as_numpy()[0]
                    order.append((serial, number))
                    total += number
            sums.append(total)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SUMS", np.array(sums, dtype=np.int32)),
                pb_utils.Tensor("ORDER", np.array([number for _, number in sorted(order)], dtype=np.int32)),
            ]
        )

    def call(self, number):
        """A future of the iterator over the responses."""
        call = pb_utils.InferenceRequest(
            model_name="square",
            inputs=[pb_utils.Tensor("NUMBER", np.array([number], dtype=np.int32))],
            requested_output_names=["NUMBER", "SERIAL"],
        )
        return call.async_exec(decoupled=True)
