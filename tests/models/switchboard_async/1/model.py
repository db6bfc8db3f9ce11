"""Asks one model twice at the same time, for one output each, and answers with both."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [pb_utils.get_input_tensor_by_name(request, name) for name in ("INPUT0", "INPUT1")]
            waiting = []
            for name in ("OUTPUT0", "OUTPUT1"):
                infer_request = pb_utils.InferenceRequest(
                    model_name="add_sub", requested_output_names=[name], inputs=inputs
                )
                waiting.append(infer_request.async_exec())
            infer_responses = await asyncio.gather(*waiting)
            for infer_response in infer_responses:
                if infer_response.has_error():
                    raise pb_utils.TritonModelException(infer_response.error().message())
            first = pb_utils.get_output_tensor_by_name(infer_responses[0], "OUTPUT0")
            second = pb_utils.get_output_tensor_by_name(infer_responses[1], "OUTPUT1")
            responses.append(pb_utils.InferenceResponse(output_tensors=[first, second]))
        return responses
