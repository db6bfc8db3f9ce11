"""A language model of one sentence: after each word the next one of it."""

import numpy as np
import triton_python_backend_utils as pb_utils

SENTENCE = [1, 2, 3, 4, 5, 6, 1, 7, 8, 0]


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "INPUT_IDS").as_numpy()
            logits = np.zeros((rows.shape[0], 9), dtype=np.float32)
            for row, length in enumerate(np.count_nonzero(rows, axis=1)):
                logits[row, SENTENCE[min(length, len(SENTENCE) - 1)]] = 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("LOGITS", logits)]))
        return responses
