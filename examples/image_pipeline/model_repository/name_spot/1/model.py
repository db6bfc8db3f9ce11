"""ANSWER = the scores in words."""

import numpy as np
import triton_python_backend_utils as pb_utils

ROWS, COLUMNS = ("top", "", "bottom"), ("left", "", "right")
SURE = 0.3


def in_words(scores):
    """Where the spot is, or that there is none."""
    best = int(scores.argmax())
    if scores[best] < SURE:
        return "there is no spot"
    place = f"{ROWS[best // 3]} {COLUMNS[best % 3]}".strip() or "middle"
    return f"{place}: {scores[best]:.0%}"


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
            answer = np.array([in_words(scores)], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", answer)]))
        return responses
