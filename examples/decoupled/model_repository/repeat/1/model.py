"""Sends each of VALUES in a response of its own, after its delay, from a thread that outlives `execute`."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        """Only starts the work: it returns nothing, and the next requests come while threads still send."""
        for request in requests:
            thread = threading.Thread(target=self.answer, args=(request,))
            thread.start()
            self.threads = [other for other in self.threads if other.is_alive()] + [thread]

    def answer(self, request):
        sender = request.get_response_sender()
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        delays_ms = pb_utils.get_input_tensor_by_name(request, "DELAYS_MS").as_numpy()
        if len(values) != len(delays_ms):
            error = pb_utils.TritonError("each value needs a delay", pb_utils.TritonError.INVALID_ARG)
            sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        for index, delay_ms in enumerate(delays_ms):
            time.sleep(delay_ms / 1000)
            outputs = [
                pb_utils.Tensor("INDEX", np.array([index], dtype=np.uint32)),
                pb_utils.Tensor("VALUE", values[index : index + 1]),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
        # Exactly once for each request, also when there was no response at all.
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        """Nothing of the model may run on when this returns."""
        for thread in self.threads:
            thread.join()
        pb_utils.Logger.log_info("repeat: all threads have ended")
