"""From a forest's own answer to the output that a model's parameters ask for."""

from typing import Any, Callable, Mapping

import numpy as np

from pybackend_backends.fil.forest import Forest
from pybackend_sdk.error import TritonModelException

Answer = Callable[["np.ndarray"], "np.ndarray"]
"""Turns ``[rows, width]`` into ``[rows, answer_width]``."""

DEFAULT_THRESHOLD = 0.5


class AnswerForm:
    """What clients get: the forest's own answer, a class, or a probability for each class.

    Args:
        parameters: of the model: ``is_classifier`` (or ``output_class``, its older name), ``predict_proba`` and ``threshold``.

    Attributes:
        width: numbers per row.
        convert: from the forest's own answer.

    Raises:
        TritonModelException: the forest cannot give this.
    """

    def __init__(self, forest: Forest, parameters: Mapping[str, Any]) -> None:
        wants_class = parameters.get("is_classifier", parameters.get("output_class", False))
        self.width = forest.width
        self.convert: Answer = _unchanged
        if parameters.get("predict_proba", False):
            _check_probabilities(forest)
            if forest.width == 1:
                self.width, self.convert = 2, _both_probabilities
        elif wants_class:
            self.width, self.convert = 1, _chosen_class(forest, parameters.get("threshold"))


def _check_probabilities(forest: Forest) -> None:
    if not forest.gives_probabilities:
        raise TritonModelException(
            f"parameters predict_proba is true, but a forest of {forest.library} with the objective {forest.objective} gives no "
            "probabilities: leave it out"
        )


def _chosen_class(forest: Forest, threshold: Any) -> Answer:
    if forest.width <= 2:
        limit = DEFAULT_THRESHOLD if threshold is None else threshold
        return lambda answers: answers[:, -1:] > limit
    return lambda answers: answers.argmax(axis=1)[:, np.newaxis]


def _unchanged(answers: "np.ndarray") -> "np.ndarray":
    return answers


def _both_probabilities(answers: "np.ndarray") -> "np.ndarray":
    return np.hstack([1 - answers, answers])
