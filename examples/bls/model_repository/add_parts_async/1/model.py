"""The same as add_parts, with two calls of split under way at the same time: one for each half of VALUES."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        calls = [
            pb_utils.InferenceRequest(
                model_name="split", inputs=[pb_utils.Tensor("VALUES", half)], requested_output_names=["PART"]
            )
            for half in np.array_split(values, 2)
        ]
        # Each future has its iterator as soon as the first response is there.
        iterators = await asyncio.gather(*(call.async_exec(decoupled=True) for call in calls))
        total, parts = 0.0, 0
        for iterator in iterators:
            for response in iterator:  # waits like any function: other coroutines of this process stand still meanwhile
                if response.has_error():
                    return pb_utils.InferenceResponse(error=response.error())
                part = pb_utils.get_output_tensor_by_name(response, "PART")
                if part is not None:
                    total += float(part.as_numpy().sum())
                    parts += 1
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SUM", np.array([total], dtype=np.float32)),
                pb_utils.Tensor("PARTS", np.array([parts], dtype=np.int32)),
            ]
        )
