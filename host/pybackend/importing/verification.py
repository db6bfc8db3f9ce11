"""Compares the answers of a served model with those of its framework, computed in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pybackend.errors import ServerError
from pybackend.importing.sample import Request, arrays_of
from pybackend.importing.trial import Answer

PROGRAM = Path(__file__).with_name("framework_program.py")
_LONGEST_S = 1800
_MOST_LINES = 3


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        difference: the largest difference of two numbers, relative to the framework's if that is more than 1.
        output: the output that has it; ``""`` if there is no number.
        requests: how many requests were compared.
        fault: a sentence about answers that differ beyond the tolerance, ``""`` if all agree.
    """

    difference: float
    output: str
    requests: int
    fault: str


def framework_answers(
    kind: str, path: Path, config: Mapping[str, Any], requests: Sequence[Request], environment: Path | None
) -> list[dict[str, list[Any]]]:
    """The framework's flat values by output, for each request. Blocking: it may take minutes.

    Args:
        kind: the name of the model's kind.
        path: of the model's file or directory.
        config: the complete configuration.
        requests: in JSON.
        environment: an archive or a directory, None for the server's own Python.

    Raises:
        ServerError: the framework cannot compute them.
    """
    own = [sys.executable, str(PROGRAM)]
    command = own if environment is None else [
        sys.executable, "-m", "pybackend", "env", "run", str(environment), "--", "python", str(PROGRAM)
    ]  # fmt: skip
    question = json.dumps({"kind": kind, "path": str(path), "config": config, "requests": requests})
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise ServerError(f"the framework has not answered for {_LONGEST_S} s") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ServerError(
            f"the framework alone cannot compute the sample requests: {' '.join(said[-1:]) or done.returncode}"
        )
    return [{each["name"]: each["data"] for each in outputs} for outputs in json.loads(done.stdout)]


def compare(
    answered: Sequence[tuple[Request, Answer]], expected: Sequence[Mapping[str, list[Any]]], tolerance: float
) -> Comparison:
    """Compare answers.

    Args:
        answered: requests, and the server's answers.
        expected: the framework's values, likewise.
        tolerance: the largest difference that is allowed, relative to the framework's value if that is more than 1.
    """
    largest, where = 0.0, ""
    for (_, answer), values in zip(answered, expected, strict=True):
        for name, served in arrays_of(answer["outputs"]).items():
            if name not in values:
                continue
            own = values[name]
            if served.size != len(own):
                return Comparison(
                    np.inf,
                    name,
                    len(answered),
                    f"output '{name}' has {served.size} elements, and the framework's {len(own)}",
                )
            if served.dtype.kind not in "fiu":
                if served.ravel().tolist() != own:
                    return Comparison(np.inf, name, len(answered), _unequal(name, served.ravel().tolist(), own))
                continue
            difference = _difference(served.ravel(), np.array(own, served.dtype))
            if difference > largest or not where:
                largest, where = difference, name
    fault = ""
    if not largest <= tolerance:
        fault = (
            f"the served output '{where}' differs from the framework's by {largest:.3g}, more than the tolerance of {tolerance:g} "
            "(--tolerance)"
        )
    return Comparison(largest, where, len(answered), fault)


def _difference(served: np.ndarray, own: np.ndarray) -> float:
    if not served.size:
        return 0.0
    left, right = served.astype(np.float64), own.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore", over="ignore"):
        distances = np.where(same, 0.0, np.abs(left - right) / np.maximum(1.0, np.abs(right)))
    return float(np.where(np.isnan(distances), np.inf, distances).max())


def _unequal(name: str, served: Sequence[Any], own: Sequence[Any]) -> str:
    for mine, theirs in zip(served, own, strict=True):
        if mine != theirs:
            return f"the served output '{name}' is {mine!r}, and the framework's is {theirs!r}"
    return ""
