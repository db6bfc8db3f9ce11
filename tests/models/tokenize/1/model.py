"""Words to numbers, by a file beside the model: the first step of a pipeline."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "vocabulary.txt")
        with open(path, encoding="utf-8") as file:
            self.numbers = {word.strip(): number for number, word in enumerate(file)}
        self.logger = pb_utils.Logger

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            sentences = [text.decode("utf-8") for (text,) in texts]
            try:
                rows = [[self.numbers[word] for word in sentence.split()] for sentence in sentences]
            except KeyError as unknown:
                self.logger.log_warn(f"a word that is not in the vocabulary: {unknown}")
                error = pb_utils.TritonError(f"unknown word {unknown}", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            width = max(map(len, rows))
            padded = np.array([row + [0] * (width - len(row)) for row in rows], dtype=np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("INPUT_IDS", padded)]))
        return responses
