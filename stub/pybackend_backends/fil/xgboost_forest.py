"""Forests of XGBoost, answered by XGBoost itself.

Predictions go through the library's C interface: its Python method builds a matrix and a description of it for each
call, which takes 340 us where the forest needs 50. The numbers are the same, because the same code computes them.
"""

import ctypes
import json
from typing import Any, Optional

import numpy as np
import xgboost
from xgboost.libpath import find_lib_path

from pybackend_backends.fil.forest import PARALLEL_WORK, Forest, UnreadableForest, first_line

_CLASSIFIERS = {"binary:logistic": 2, "binary:logitraw": 2, "binary:hinge": 2}
_PROBABILITIES = ("binary:logistic", "reg:logistic", "multi:softprob")
_TREES = ("gbtree", "dart")
_OPTIONS = (
    b'{"type":0,"training":false,"iteration_begin":0,"iteration_end":0,"strict_shape":true,"missing":NaN,"cache_id":0}'
)
_FP32_BYTES = 4
_MATRIX = b'{"data":[%d,true],"shape":[%d,%d],"typestr":"<f4","version":3}'


class XGBoostForest(Forest):
    """A forest of XGBoost."""

    library = "XGBoost"
    has_contributions = True

    def __init__(self, content: bytes, threads: int) -> None:
        self._booster = _loaded(content)
        learner = json.loads(self._booster.save_config())["learner"]
        if learner["gradient_booster"]["name"] not in _TREES:
            raise UnreadableForest(f"its booster is {learner['gradient_booster']['name']}, which has no trees")
        objective = learner["objective"]["name"]
        if objective == "multi:softmax":  # answers the class only, of the same probabilities
            self._booster.set_param({"objective": "multi:softprob"})
            objective = "multi:softprob"
        classes = int(learner["learner_model_param"]["num_class"])
        targets = int(learner["learner_model_param"].get("num_target", 1))
        self.objective = objective
        self.features = self._booster.num_features()
        self.width = max(classes, targets, 1)
        self.classes = classes if classes > 1 else _CLASSIFIERS.get(objective, 0)
        self.gives_probabilities = objective in _PROBABILITIES
        self._trees = self._booster.num_boosted_rounds() * self.width
        self._most_threads = threads
        self._threads = 0
        self._c = _CInterface(self._booster.handle)

    def predict(self, rows: "np.ndarray") -> "np.ndarray":
        self._share(len(rows))
        return self._c.predict(rows, self.width)

    def contributions(self, rows: "np.ndarray") -> "np.ndarray":
        self._share(len(rows))
        matrix = xgboost.DMatrix(rows, nthread=self._threads)
        values: np.ndarray = self._booster.predict(matrix, pred_contribs=True, validate_features=False)
        return values

    def _share(self, rows: int) -> None:
        threads = self._most_threads if rows * self._trees >= PARALLEL_WORK else 1
        if threads != self._threads:
            self._threads = threads
            self._booster.set_param({"nthread": threads})


class _CInterface:
    """The one function of XGBoost's C interface that predicts, and what it needs."""

    def __init__(self, booster: Any) -> None:
        self._library = ctypes.CDLL(find_lib_path()[0])
        self._library.XGBGetLastError.restype = ctypes.c_char_p
        self._booster = booster
        self._proxy = ctypes.c_void_p()
        self._shape = ctypes.POINTER(ctypes.c_uint64)()
        self._dimensions = ctypes.c_uint64()
        self._result = ctypes.POINTER(ctypes.c_float)()
        self._outputs = (ctypes.byref(self._shape), ctypes.byref(self._dimensions), ctypes.byref(self._result))
        self._check(self._library.XGProxyDMatrixCreate(ctypes.byref(self._proxy)))

    def predict(self, rows: "np.ndarray", width: int) -> "np.ndarray":
        address, _ = rows.__array_interface__["data"]
        count, features = rows.shape
        matrix = _MATRIX % (address, count, features)
        self._check(
            self._library.XGBoosterPredictFromDense(self._booster, matrix, _OPTIONS, self._proxy, *self._outputs)
        )
        if self._dimensions.value != 2 or self._shape[1] != width:
            raise RuntimeError(f"XGBoost answers {self._shape[1]} numbers for a row, and its file states {width}")
        # The library reuses its memory, so the numbers are copied. as_array() of NumPy takes as long as a small forest.
        numbers = ctypes.string_at(self._result, count * width * _FP32_BYTES)
        return np.frombuffer(numbers, np.float32).reshape(count, width)

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(first_line(self._library.XGBGetLastError().decode(errors="replace")))


def _loaded(content: bytes) -> "xgboost.Booster":
    if not content:
        raise UnreadableForest("it is empty")  # XGBoost would end the process
    booster = xgboost.Booster()
    refusal: Optional[str] = None
    try:
        booster.load_model(bytearray(content))
    except (xgboost.core.XGBoostError, ValueError) as error:
        refusal = first_line(str(error))
    if refusal is not None:
        if content[:1] != b"{":
            refusal = (
                f"it is neither JSON nor UBJSON ({refusal}). The binary format of XGBoost before 1.7 has to be converted with the "
                "version that wrote it: Booster.save_model('xgboost.ubj')"
            )
        else:
            refusal = f"XGBoost finds no whole model in it ({refusal})"
        raise UnreadableForest(refusal)
    return booster
