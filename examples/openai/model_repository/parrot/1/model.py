"""Repeats the last message of a chat, word by word, as often as the request says."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            chat = json.loads(pb_utils.get_input_tensor_by_name(request, "conversation").as_numpy()[0])
            said = chat["messages"][-1]["content"].split()
            most = int(json.loads(request.parameters()).get("max_tokens", 16))
            for word in said[:most]:
                if request.is_cancelled():
                    break
                sender.send(response(word, len(said)))
            sender.send(flags=FINAL)


def response(word, prompt_words):
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("reply", np.array([f"{word} ".encode()], np.object_)),
            pb_utils.Tensor("num_input_tokens", np.array([prompt_words], np.uint32)),
            pb_utils.Tensor("num_output_tokens", np.array([1], np.uint32)),
        ]
    )
