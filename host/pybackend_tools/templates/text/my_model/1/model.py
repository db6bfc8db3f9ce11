"""Labels texts as positive or negative: texts, a model, numbers, labels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

LABELS = ("negative", "positive")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Runs once, before the first request: load your own model here."""
        # Files of a model lie beside its code, or in directories below.
        weights = Path(pb_utils.get_model_dir(), "weights.json").read_text()
        self.weights: dict[str, float] = json.loads(weights)

    def execute(
        self,
        requests: list[pb_utils.InferenceRequest],
    ) -> list[pb_utils.InferenceResponse]:
        """Returns one response for each request, in the same order."""
        return [self.respond(request) for request in requests]

    def respond(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        # TEXT has the shape [batch, 1], and its elements are bytes, not str.
        array = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        try:
            texts = [element.decode() for element in array[:, 0]]
        except UnicodeDecodeError:
            error = pb_utils.TritonError(
                "TEXT must be UTF-8",
                pb_utils.TritonError.INVALID_ARG,
            )
            return pb_utils.InferenceResponse(error=error)
        positive = self.predict(texts)
        chosen = (positive >= 0.5).astype(int)
        # An array of str needs the dtype object.
        labels = np.array([[LABELS[place]] for place in chosen], np.object_)
        scores = np.where(chosen, positive, 1 - positive).astype(np.float32)
        outputs = [
            pb_utils.Tensor("LABEL", labels),
            pb_utils.Tensor("SCORE", scores[:, np.newaxis]),
        ]
        return pb_utils.InferenceResponse(outputs)

    def predict(self, texts: list[str]) -> np.ndarray:
        """Put your own model here: how positive each text of the batch is, 0 to 1.

        A pipeline of scikit-learn takes the texts as they are:
        ``return self.pipeline.predict_proba(texts)[:, 1]``.
        """
        batch = [re.findall(r"\w+", text.lower()) for text in texts]
        sums = [sum(self.weights.get(word, 0) for word in words) for words in batch]
        return 1 / (1 + np.exp(-np.array(sums, np.float64)))
