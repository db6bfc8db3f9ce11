"""``Forest``: a loaded forest, whichever library loaded it. Beside this module, each library has a separate one."""

from abc import ABC, abstractmethod

import numpy as np

PARALLEL_WORK = 50_000
"""Rows times trees from which a prediction is shared among threads: below about 5 ms, waking threads costs more."""


class UnreadableForest(Exception):
    """The file is not a forest that its library can read; the message says why, without the file's name."""


class Forest(ABC):
    """A forest."""

    library: str  # the library that answers, for messages
    features: int  # numbers per row of the input
    width: int  # numbers per row of the forest's own answer: 1, or one for each class
    classes: int  # how many classes a classifier tells apart, 0 for a forest that is no classifier
    objective: str  # what the forest was trained for, in its library's words
    gives_probabilities: bool  # whether the forest's own answer consists of probabilities
    has_contributions: bool = False  # whether :meth:`contributions` is possible

    @abstractmethod
    def predict(self, rows: "np.ndarray") -> "np.ndarray":
        """The forest's own answer: a new array, ``[rows, width]``, in the precision in which the library computes.

        The rows are C-contiguous, ``[rows, features]``, FP32, at least one; NaN is a missing value.
        """

    def contributions(self, rows: "np.ndarray") -> "np.ndarray":
        """Shapley values: what each feature contributes to the sum of the trees, and the sum's bias at the end.

        The shape is ``[rows, features + 1]``, or ``[rows, classes, features + 1]`` if the width is not 1.
        """
        raise NotImplementedError


def first_line(message: str) -> str:
    """The first line of an error of a library in C++, without the time and the place in its sources."""
    line = message.strip().partition("\n")[0]
    return line.partition(": ")[2] if line.startswith("[") and ": " in line else line
