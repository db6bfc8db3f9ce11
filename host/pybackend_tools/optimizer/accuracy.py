"""How much the answers of a form differ from those of the original: numbers, and a metric of the user's own."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pybackend.errors import ServerError
from pybackend_client.trial import Answer, Request, arrays_of
from pybackend_tools.importing.verification import UnequalError, differences, numbers_of

Arrays = Mapping[str, np.ndarray]

Original = Sequence[Mapping[str, list[Any]]]
"""The original's flat values by output, for each request."""


@dataclass(frozen=True)
class Tolerance:
    """The differences that are allowed."""

    largest: float
    mean: float


@dataclass(frozen=True)
class Difference:
    """Differences of all numbers, relative to the original's above 1; of labels, strings and truth values 0 or 1."""

    largest: float
    mean: float
    output: str  # that of the original with the largest one

    def beyond(self, tolerance: Tolerance) -> str:
        """A clause about a difference that is not allowed, ``""`` for none."""
        if self.largest > tolerance.largest:
            return f"output '{self.output}' differs by up to {self.largest:.3g}, more than {tolerance.largest:g}"
        if self.mean > tolerance.mean:
            return f"its outputs differ by {self.mean:.3g} on average, more than {tolerance.mean:g}"
        return ""


def difference_of(answers: Sequence[Answer], original: Original) -> Difference:
    """Compare answers. Raises UnequalError if the outputs of both sides cannot be matched."""
    largest, where, total, count = -1.0, "", 0.0, 0
    names = _matched(answers[0], original[0])
    for answer, expected in zip(answers, original, strict=True):
        for name, served in arrays_of(answer["outputs"]).items():
            own = expected[names[name]]
            if served.size != len(own):
                raise UnequalError(f"output '{name}' has {served.size} elements, and the original's {len(own)}")
            if served.dtype.kind == "f":
                apart = differences(served.ravel(), numbers_of(own, np.dtype(np.float64), names[name]))
            else:
                apart = np.array(
                    [mine != theirs for mine, theirs in zip(served.ravel().tolist(), own, strict=True)], float
                )
            total, count = total + float(apart.sum()), count + apart.size
            if apart.max(initial=0.0) > largest:
                largest, where = float(apart.max(initial=0.0)), names[name]
    return Difference(max(0.0, largest), total / max(1, count), where)


def _matched(answer: Answer, expected: Mapping[str, list[Any]]) -> dict[str, str]:
    """The outputs of the original by those of a form: of the same name, else the only one with as many elements."""
    found = {}
    for tensor in answer["outputs"]:
        name, size = tensor["name"], len(tensor["data"])
        alike = [name] if name in expected else [other for other, values in expected.items() if len(values) == size]
        if len(alike) != 1:
            raise UnequalError(f"its output '{name}' is not among the original's, {', '.join(expected)}")
        found[name] = alike[0]
    return found


class MetricError(ServerError):
    """The user's function cannot judge some answers."""


class Metric:
    """A function of the user's: ``metric(inputs, outputs)`` gets a list of arrays by name for each, and returns a number, more of which is better.

    Raises ServerError if it cannot be loaded. ``place``: ``FILE.py``, or ``FILE.py:FUNCTION``.
    """

    def __init__(self, place: str) -> None:
        path, _, function = place.partition(":")
        self._place = place
        if not Path(path).is_file():
            raise ServerError(f"--metric: {path} does not exist: name a file with a function metric(inputs, outputs)")
        try:
            found = runpy.run_path(path).get(function or "metric")
        except (Exception, SystemExit) as error:  # noqa: BLE001  it is the user's code
            raise ServerError(f"--metric: {path} cannot be run: {type(error).__name__}: {error}") from None
        if not callable(found):
            raise ServerError(f"--metric: {path} has no function {function or 'metric'}(inputs, outputs)")
        self._function: Callable[[list[Arrays], list[Arrays]], Any] = found

    def __call__(self, requests: Sequence[Request], answers: Sequence[Answer]) -> float:
        """The metric of some answers. Raises MetricError if the function fails, or returns no number."""
        inputs: list[Arrays] = [arrays_of(each["inputs"]) for each in requests]
        outputs: list[Arrays] = [arrays_of(each["outputs"]) for each in answers]
        try:
            value = float(self._function(inputs, outputs))
        except (Exception, SystemExit) as error:  # noqa: BLE001  it is the user's code
            raise MetricError(f"--metric: {self._place} fails: {type(error).__name__}: {error}") from None
        if math.isnan(value):
            raise MetricError(f"--metric: {self._place} returns no number")
        return value
