"""Numbers to words: the last step of a pipeline."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

WORDS = (Path(__file__).parent / "vocabulary.txt").read_text().split()


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "INPUT_IDS").as_numpy()
            texts = [[" ".join(WORDS[number] for number in row if number).encode("utf-8")] for row in rows]
            responses.append(
                pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("TEXT", np.array(texts, dtype=np.object_))])
            )
        return responses
