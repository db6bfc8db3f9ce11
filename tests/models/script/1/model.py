"""Says what its prompt tells it to say: a JSON list whose parts are responses, each an object with an output's value by
its name.

Texts stand for bytes (Latin-1). A number is a count, a list or an object is JSON text. ``{"error": ...}`` fails,
``{"forever": text}`` repeats it until the request is cancelled, ``{"tell": true}`` says what has come in. The prompt of
a chat is its last message.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
FIRST = {"num_input_tokens": 7, "num_output_tokens": 1}


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            given = {tensor.name(): tensor.as_numpy().ravel().tolist()[0] for tensor in request.inputs()}
            given = {name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()}
            prompt = given["text_input"]
            if given.get("chat"):
                prompt = json.loads(given["chat"])["messages"][-1]["content"]
            self.answer(request, json.loads(prompt), given)

    def answer(self, request, script, given):
        sender = request.get_response_sender()
        for place, part in enumerate(script):
            if "error" in part:
                code = getattr(pb_utils.TritonError, part.get("code", "INTERNAL"))
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(part["error"], code)))
                break
            if "forever" in part:
                pb_utils.Logger.log_info("the script goes on for ever")
                while not request.is_cancelled():
                    sender.send(response({"text_output": part["forever"]}))
                pb_utils.Logger.log_info("the script was cancelled")
                break
            if "tell" in part:
                part = {"text_output": json.dumps({**given, "parameters": json.loads(request.parameters())})}
            sender.send(response({**(FIRST if place == 0 else {"num_output_tokens": 1}), **part}))
        sender.send(flags=FINAL)


def response(values):
    return pb_utils.InferenceResponse([tensor(name, value) for name, value in values.items()])


def tensor(name, value):
    if isinstance(value, int):
        return pb_utils.Tensor(name, np.array([value], np.uint32))
    text = value.encode("latin-1") if isinstance(value, str) else json.dumps(value).encode()
    return pb_utils.Tensor(name, np.array([text], np.object_))
