"""Answers IN times with 0, 1, 2, ...; a second element k makes response k an error; a third sends the flag with the
last one."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            numbers = request.inputs()[0].as_numpy().astype(int).tolist()
            count, wrong, together = numbers + [0, -1, 0][len(numbers) :]
            sender = request.get_response_sender()
            for index in range(count):
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([index], np.float32))])
                if index == wrong:
                    response = pb_utils.InferenceResponse(
                        error=pb_utils.TritonError(f"no {index}", pb_utils.TritonError.NOT_FOUND)
                    )
                sender.send(response, flags=1 if together and index == count - 1 else 0)
            if not (together and count):
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
