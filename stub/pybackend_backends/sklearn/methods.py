"""The methods of an estimator whose results are outputs of a model, and what they return."""

from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import sklearn.base

from pybackend_backends.sklearn.table import data_type_of
from pybackend_sdk.backend import TensorInfo
from pybackend_sdk.datatypes import triton_string_to_numpy
from pybackend_sdk.error import TritonModelException

_OUTPUT_OF_METHOD = {
    "predict": "prediction",
    "predict_proba": "probabilities",
    "decision_function": "decision",
    "score_samples": "scores",
    "transform": "transformed",
}
"""The output that each method fills, in their usual order; ``predict`` of an estimator that names classes or groups fills ``label``."""

_LABELS = "label"
_LABELLING = ("classifier", "clusterer", "outlier_detector")
"""Kinds of estimators that name a class or a group for each row."""

METHOD_NAMES = tuple(_OUTPUT_OF_METHOD)


class Method(NamedTuple):
    """A method of an estimator and the output that it fills; the result's first dimension is the rows'."""

    output: str
    call: Callable[[Any], "np.ndarray"]


def chosen_methods(estimator: Any, configured: Sequence[str], names: Optional[Sequence[str]]) -> List[Method]:
    """The methods that fill a model's outputs.

    The configuration may leave the outputs out, and the parameters, where ``names`` is None, the methods.
    """
    available = {name: _output_of(estimator, name) for name in METHOD_NAMES if hasattr(estimator, name)}
    kind = type(estimator).__name__
    if not available:
        raise TritonModelException(f"the file holds a {kind}, which has none of the methods {', '.join(METHOD_NAMES)}")
    for name in names or ():
        if name not in available:
            raise TritonModelException(
                f"parameters METHODS names {name}, and the file holds a {kind}, which has {', '.join(available)}"
            )
    if names is not None:
        outputs = configured or [available[name] for name in names]
        if len(outputs) != len(names):
            raise TritonModelException(
                f"parameters METHODS names {len(names)} methods, and config.pbtxt has {len(outputs)} outputs: give one for each"
            )
        return [Method(output, _call(estimator, name)) for output, name in zip(outputs, names)]
    method_of = {output: name for name, output in available.items()}
    outputs = configured or [available[name] for name in _usual(available)]
    for output in outputs:
        if output not in method_of:
            raise TritonModelException(
                f"config.pbtxt has the output '{output}', and the {kind} in the file gives {', '.join(method_of)}: rename it, "
                "or name the methods of your outputs in parameters METHODS"
            )
    return [Method(output, _call(estimator, method_of[output])) for output in outputs]


def tried(method: Method, example: Any, configured: Mapping[str, Any]) -> TensorInfo:
    """The output of a method, found out by calling it for one row. Its entry in the configuration may name its numeric type."""
    try:
        result = method.call(example)
    except Exception as error:  # estimators raise anything
        raise TritonModelException(
            f"the estimator fails for a row that its file allows: {type(error).__name__}: {' '.join(str(error).split())}. The versions of "
            "scikit-learn that wrote and read the file may differ"
        ) from error
    data_type = data_type_of(result.dtype)
    wanted = configured.get("data_type", "TYPE_INVALID")
    if "TYPE_STRING" not in {data_type, wanted} and wanted != "TYPE_INVALID":
        data_type = wanted  # numbers are converted
    width = -1 if _has_open_width(configured) else result.shape[1]
    return TensorInfo(method.output, data_type, (-1, width, *result.shape[2:]))


def _has_open_width(configured: Mapping[str, Any]) -> bool:
    return [int(size) for size in configured.get("dims", ())][-1:] == [-1]


def _output_of(estimator: Any, method: str) -> str:
    return _LABELS if method == "predict" and _names_classes(estimator) else _OUTPUT_OF_METHOD[method]


def _names_classes(estimator: Any) -> bool:
    if getattr(estimator, "_estimator_type", None) in _LABELLING:
        return True  # before scikit-learn 1.6, which has a function for each kind
    return any(getattr(sklearn.base, f"is_{kind}", _is_none)(estimator) for kind in _LABELLING)


def _is_none(_: Any) -> bool:
    return False


def _usual(available: Mapping[str, str]) -> List[str]:
    if "predict" not in available:
        return [name for name in ("transform", "score_samples", "decision_function") if name in available][:1]
    is_classifier = available["predict"] == _LABELS and "predict_proba" in available
    return ["predict", "predict_proba"] if is_classifier else ["predict"]


def _call(estimator: Any, name: str) -> Callable[[Any], "np.ndarray"]:
    method = getattr(estimator, name)

    def call(table: Any) -> "np.ndarray":
        return _as_rows(method(table))

    return call


def _as_rows(result: Any) -> "np.ndarray":
    """A result as an array of at least two dimensions: sparse matrices and tables are filled in."""
    if hasattr(result, "toarray"):
        result = result.toarray()
    if isinstance(result, list):  # of an estimator with several outputs: one array for each
        result = np.stack(result, axis=1)
    array = np.asarray(result)
    return array[:, np.newaxis] if array.ndim == 1 else array


def converter(data_type: str) -> "Callable[[np.ndarray], np.ndarray]":
    """What turns a method's array into a type of config.pbtxt."""
    dtype = np.dtype(np.object_ if data_type == "TYPE_STRING" else triton_string_to_numpy(data_type))
    return lambda array: array.astype(dtype, copy=False)
