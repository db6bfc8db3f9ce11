"""Compares the answers of a served model with those of its framework alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pybackend.errors import InferenceError, ServerError
from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.parser import format_config_text
from pybackend_client.connection import Connection
from pybackend_client.trial import Answer, Request, Trial, arrays_of, cause_of
from pybackend_tools.importing import probe

_PROGRAM = Path(__file__).with_name("framework_program.py")
_FILES = "files"
_CLASSES = "classes_"  # the kind of question for the names of classes, and the name of the answer
_CONFIG = {
    "backend": "python",
    "input": [{"name": "request", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "answer", "data_type": "TYPE_STRING", "dims": [1]}],
    "instance_group": [{"count": 1}],
}


class UnequalError(ServerError):
    """Answers that cannot be compared with the original's."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    difference: float  # the largest difference of two numbers, relative to the framework's if that is more than 1
    output: str  # the output that has it; ``""`` if there is no number
    requests: int
    fault: str  # a sentence about answers that differ beyond the tolerance, ``""`` if all agree


@dataclass(frozen=True)
class FrameworkModel:
    """The framework as a second model of the server that serves the imported one.

    So it runs with the sandbox and in the environment of the imported model: what it loads may hold code of its author.
    """

    directory: Path  # the second model's directory; its name is the model's

    @property
    def files(self) -> Path:
        """Where the files of the imported version must lie."""
        return self.directory / "1" / _FILES

    def answers(
        self,
        connection: Connection,
        kind: str,
        file: str,
        config: Mapping[str, Any],
        parameters: Mapping[str, Any],
        requests: Sequence[Request],
    ) -> list[dict[str, list[Any]]]:
        """The framework's flat values by output, for each request. Blocking: it may take minutes.

        Raises ServerError if the framework cannot compute them.

        ``kind``: the name of the imported model's kind. ``file``: the file or directory that the framework loads,
        relative to :attr:`files`. ``parameters``: of the second model: its sandbox and its environment.
        """
        try:
            trial = self._load(connection, kind, file, config, parameters)
            return [self._answer(trial, request) for request in requests]
        except InferenceError as error:
            raise ServerError(
                f"the framework alone cannot compute the sample requests: {cause_of(error.message)}"
            ) from None

    def class_names(
        self, connection: Connection, file: str, config: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> list[str]:
        """The names of an estimator's classes, in the order of its probabilities; empty if they cannot be had.

        The arguments are those of :meth:`answers`.
        """
        try:
            trial = self._load(connection, _CLASSES, file, config, parameters)
            names = self._answer(trial, {"inputs": []}).get(_CLASSES, [])
            trial.unload()
        except (InferenceError, ServerError):
            return []
        return [name for name in names if isinstance(name, str)]

    def _load(
        self,
        connection: Connection,
        kind: str,
        file: str,
        config: Mapping[str, Any],
        parameters: Mapping[str, Any],
    ) -> Trial:
        """Write the second model for a kind of question, and load it. Raises InferenceError: it does not load."""
        file = inner_file(self.files, file)
        version, question = self.files.parent, {"kind": kind, "path": f"{_FILES}/{file}", "config": config}
        for name, text in probe_files(_PROGRAM, question).items():
            (version / name).write_text(text, encoding="utf-8")
        text = format_config_text({**_CONFIG, "parameters": parameters})
        (self.directory / CONFIG_FILENAME).write_text(text, encoding="utf-8")
        trial = Trial(connection, self.directory.name)
        trial.load()
        return trial

    def _answer(self, trial: Trial, request: Request) -> dict[str, list[Any]]:
        tensor = {"name": "request", "datatype": "BYTES", "shape": [1], "data": [json.dumps(request)]}
        (answer,) = trial.answer({"inputs": [tensor]})["outputs"]
        try:
            found = {each["name"]: each["data"] for each in json.loads(answer["data"][0])}
        except (LookupError, RecursionError, TypeError, ValueError):
            found = {}
        if not found or not all(map(_are_flat, found.values())):
            raise ServerError(
                "the framework alone cannot compute the sample requests: its process does not answer with lists of values, as if code "
                "in the model's files had replaced the program"
            )
        return found


def probe_files(program: Path, question: Mapping[str, Any]) -> dict[str, str]:
    """The files of a version whose model is a program that is asked a question; see :mod:`probe`."""
    return {
        DEFAULT_MODEL_FILENAME: program.read_text(encoding="utf-8"),
        "probe.py": Path(probe.__file__).read_text(encoding="utf-8"),
        probe.QUESTION: json.dumps(question),
    }


def _are_flat(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, bool | int | float | str) for each in values)


def inner_file(directory: Path, file: str) -> str:
    """The file that a framework reads; of an ONNX file with external data it lies in a directory of its name."""
    return f"{file}/{file}" if (directory / file / file).is_file() else file


def compare(
    answered: Sequence[tuple[Request, Answer]], expected: Sequence[Mapping[str, list[Any]]], tolerance: float
) -> Comparison:
    """Compare answers.

    ``expected``: the framework's values, likewise. ``tolerance``: the largest difference that is allowed, relative to
    the framework's value if that is more than 1.
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
            difference = float(differences(served.ravel(), numbers_of(own, served.dtype, name)).max(initial=0.0))
            if difference > largest or not where:
                largest, where = difference, name
    fault = ""
    if not largest <= tolerance:
        fault = (
            f"the served output '{where}' differs from the framework's by {largest:.3g}, more than the tolerance of {tolerance:g} "
            "(--tolerance)"
        )
    return Comparison(largest, where, len(answered), fault)


def numbers_of(values: Sequence[Any], dtype: np.dtype, output: str) -> np.ndarray:
    """The framework's values of an output that is served as numbers. Raises UnequalError if they are none."""
    try:
        return np.array(values, dtype)
    except (OverflowError, TypeError, ValueError):
        raise UnequalError(
            f"output '{output}' is served as numbers, and the framework's values are not numbers of this type"
        ) from None


def differences(served: np.ndarray, own: np.ndarray) -> np.ndarray:
    """How far numbers are from the framework's, relative to those above 1; infinite where one of two is no number."""
    left, right = served.astype(np.float64), own.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore", over="ignore"):
        distances = np.where(same, 0.0, np.abs(left - right) / np.maximum(1.0, np.abs(right)))
    return np.where(np.isnan(distances), np.inf, distances)


def _unequal(name: str, served: Sequence[Any], own: Sequence[Any]) -> str:
    for mine, theirs in zip(served, own, strict=True):
        if mine != theirs:
            return f"the served output '{name}' is {mine!r}, and the framework's is {theirs!r}"
    return ""
