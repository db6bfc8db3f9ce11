"""Calls mean and median at the same time and waits for both."""

import asyncio

import triton_python_backend_utils as pb_utils

MODELS = ("mean", "median")


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "VALUES")
        calls = [
            # With the trace, the calls are parts of the request where it is traced, and the console draws them.
            pb_utils.InferenceRequest(
                model_name=name, inputs=[values], requested_output_names=["RESULT"], trace=request.trace()
            )
            for name in MODELS
        ]
        responses = await asyncio.gather(*(call.async_exec() for call in calls))
        return pb_utils.InferenceResponse([output(name, responses[index]) for index, name in enumerate(MODELS)])


def output(name, response):
    """The result of a model as an output of this one."""
    if response.has_error():
        # The other way to pass an error on: raise. The client gets INTERNAL, this text and the line.
        raise pb_utils.TritonModelException(f"{name}: {response.error().message()}")
    result = pb_utils.get_output_tensor_by_name(response, "RESULT").as_numpy()
    return pb_utils.Tensor(name.upper(), result)
