"""Image files in, labels out: has each file prepared, all of them classified together, and looks the labels up."""

import asyncio
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class Failed(Exception):
    """A step of the pipeline has answered with an error."""


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "labels.txt"), encoding="utf-8") as file:
            self.labels = file.read().split("\n")

    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "FILES").as_numpy()
        if not files.size:
            error = pb_utils.TritonError("FILES is empty", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        try:
            # One call for each file, at the same time; then one call for all of them.
            pixels = await asyncio.gather(
                *(self.call("prepare_image", "FILE", file, "PIXELS") for file in files.reshape(-1, 1))
            )
            scores = await self.call("texture", "PIXELS", np.stack(pixels), "SCORES")
        except Failed as failed:
            return pb_utils.InferenceResponse(error=failed.args[0])
        labels = np.array([self.labels[best] for best in scores.argmax(axis=1)], dtype=np.object_)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("LABELS", labels), pb_utils.Tensor("CONFIDENCE", scores.max(axis=1))]
        )

    async def call(self, model_name, input_name, value, output_name):
        """Runs a model that has one input and one output."""
        call = pb_utils.InferenceRequest(
            model_name=model_name,
            inputs=[pb_utils.Tensor(input_name, value)],
            requested_output_names=[output_name],
        )
        response = await call.async_exec()
        if response.has_error():
            raise Failed(response.error())
        return pb_utils.get_output_tensor_by_name(response, output_name).as_numpy()
