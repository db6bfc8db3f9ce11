"""Forests that treelite answers: its checkpoints, and forests of scikit-learn.

For single rows, treelite's predictor needs a hundredth of the time that scikit-learn needs. It is called through its C
interface, which saves another 65 us of Python.
"""

import ctypes
import json
import os
import re
from typing import Any

import numpy as np
import treelite
import treelite.sklearn
from treelite.core import TreeliteError
from treelite.libpath import find_lib_path

from pybackend_backends.fil.forest import PARALLEL_WORK, Forest, UnreadableForest, first_line

_BINARY, _MULTICLASS = "kBinaryClf", "kMultiClf"
_TASKS = {0: _BINARY, 1: "kRegressor", 2: _MULTICLASS, 3: "kLearningToRank", 4: "kIsolationForest"}
_NEWEST_MAJOR = 99
"""Larger versions are other files, whose first bytes treelite takes for one."""
_PROBABILITIES = ("sigmoid", "softmax", "identity_multiclass", "multiclass_ova")


class TreeliteForest(Forest):
    """A forest that treelite holds."""

    library = "treelite"

    def __init__(self, model: "treelite.Model", threads: int) -> None:
        self._model = model
        header = model.get_header_accessor()
        targets, task = _whole(header, "num_target"), _TASKS.get(_whole(header, "task_type"), "another task")
        if targets != 1:
            raise UnreadableForest(f"it has {targets} targets, and only forests of one are served")
        postprocessor = header.get_field("postprocessor")
        self.objective = f"{task} with {postprocessor}"
        self.features = model.num_feature
        self.width = max(1, _whole(header, "num_class"))
        self.classes = max(2, self.width) if task in {_BINARY, _MULTICLASS} else 0
        self.gives_probabilities = self.classes > 0 and postprocessor in _PROBABILITIES
        self._trees = model.num_tree
        self._dtype = np.dtype(model.input_type)
        self._result_dtype = np.dtype(model.output_type)
        self._type_name = model.input_type.encode()
        self._library = ctypes.CDLL(find_lib_path()[0])
        self._library.TreeliteGetLastError.restype = ctypes.c_char_p
        self._alone, self._shared = self._configuration(1), self._configuration(threads)

    def predict(self, rows: "np.ndarray") -> "np.ndarray":
        rows = rows.astype(self._dtype, copy=False)
        result = np.zeros((len(rows), self.width), self._result_dtype)
        self._check(
            self._library.TreeliteGTILPredict(
                self._model.handle,
                ctypes.c_void_p(rows.__array_interface__["data"][0]),
                self._type_name,
                ctypes.c_uint64(len(rows)),
                ctypes.c_void_p(result.__array_interface__["data"][0]),
                self._shared if len(rows) * self._trees >= PARALLEL_WORK else self._alone,
            )
        )
        return result

    def _configuration(self, threads: int) -> ctypes.c_void_p:
        text = json.dumps({"predict_type": "default", "nthread": threads}).encode()
        configuration = ctypes.c_void_p()
        self._check(self._library.TreeliteGTILParseConfig(text, ctypes.byref(configuration)))
        return configuration

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(first_line(self._library.TreeliteGetLastError().decode(errors="replace")))


def checkpoint_forest(path: str, threads: int) -> TreeliteForest:
    """Read a checkpoint of treelite."""
    if os.path.getsize(path) == 0:
        raise UnreadableForest("it is empty")  # treelite would report a version of it
    try:
        model = treelite.Model.deserialize(path)
    except TreeliteError as error:
        raise UnreadableForest(_explained(str(error))) from None
    return TreeliteForest(model, threads)


def estimator_forest(estimator: Any, threads: int) -> TreeliteForest:
    """Take over the trees of an estimator of scikit-learn."""
    kind = type(estimator).__name__
    try:
        model = treelite.sklearn.import_model(estimator)
    except (TreeliteError, NotImplementedError, TypeError, ValueError) as error:
        raise UnreadableForest(
            f'it holds a {kind}, whose trees treelite cannot take over ({first_line(str(error))}). backend: "sklearn" serves any '
            "estimator"
        ) from None
    forest = TreeliteForest(model, threads)
    forest.library = "treelite, for scikit-learn"
    forest.objective = kind
    return forest


def _whole(header: Any, field: str) -> int:
    return int(header.get_field(field)[0])


def _explained(message: str) -> str:
    if "Cannot load model from a different major" not in message:
        return first_line(message)
    versions = [line.strip().rstrip(".") for line in message.strip().splitlines()[1:3]]
    written = re.search(r"generated from Treelite version (\d+)\.", message)
    if written is None or int(written[1]) > _NEWEST_MAJOR:
        return "it is no checkpoint of treelite: Model.serialize('checkpoint.tl') writes one"
    return f"it is no checkpoint, or one of a version that cannot be read ({'; '.join(versions)})"
