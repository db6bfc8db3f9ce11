"""Answers NUMBER as many times as it says: together the responses are its square.

Requests are coroutines on one event loop. They take turns, so a small number is done before a large one that came
first.
"""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

PAUSE_S = 0.05


class TritonPythonModel:
    def initialize(self, args):
        self.sent = 0

    async def execute(self, requests):
        """The next call of `execute` does not wait for this one."""
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        sender = request.get_response_sender()
        number = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy()
        for _ in range(number[0]):
            await asyncio.sleep(PAUSE_S)
            self.sent += 1
            serial = pb_utils.Tensor("SERIAL", np.array([self.sent], dtype=np.int32))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", number), serial]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
