"""The inputs of a fitted estimator (an array, a list of texts or a table with named columns) and the outputs of its methods."""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import sklearn.base

from pybackend_sdk.backend import TensorInfo, require
from pybackend_sdk.datatypes import triton_string_to_numpy
from pybackend_sdk.error import TritonModelException
from pybackend_wire.dtypes import BY_NUMPY


class Column(NamedTuple):
    """A column of the table that an estimator was fitted on: its type in config.pbtxt, and a value that the estimator accepts."""

    data_type: str
    example: Any


_NUMBER, _TEXT = Column("TYPE_FP64", 0.0), Column("TYPE_STRING", "a")


def feature_names(estimator: Any) -> Optional[List[str]]:
    """The names of the columns that the estimator was fitted on; None if it was fitted on an array."""
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def first_step(estimator: Any) -> Any:
    """What the input reaches first: through searches for parameters and pipelines."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif getattr(estimator, "steps", None):
            estimator = estimator.steps[0][1]
        else:
            return estimator


def takes_columns(estimator: Any) -> bool:
    """Whether the input's columns have different types, so that one array cannot hold them."""
    return feature_names(estimator) is not None and hasattr(first_step(estimator), "transformers_")


def takes_texts(estimator: Any) -> bool:
    """Whether the input is a list of texts, as vectorizers have it."""
    return not hasattr(estimator, "n_features_in_") and hasattr(first_step(estimator), "build_analyzer")


def columns(estimator: Any) -> Mapping[str, Column]:
    """The columns that an estimator was fitted on, in their order."""
    names = feature_names(estimator) or []
    found: Dict[str, Column] = dict.fromkeys(names, _NUMBER)
    for _, transformer, chosen in getattr(first_step(estimator), "transformers_", ()):
        inside = first_step(transformer)
        chosen_names = _chosen(names, chosen)
        if hasattr(inside, "build_analyzer"):
            found.update(dict.fromkeys(chosen_names, _TEXT))
        found.update(zip(chosen_names, [_column_of(values) for values in getattr(inside, "categories_", ())]))
    return found


def categories_of_rows(estimator: Any) -> Optional[Column]:
    """The values of an array whose columns are categories, as encoders have them.

    None if the input is no such array.
    """
    categories = getattr(first_step(estimator), "categories_", ())
    if not len(categories) or hasattr(first_step(estimator), "transformers_"):
        return None
    row = [_column_of(values) for values in categories]
    types = {column.data_type for column in row}
    return Column(types.pop() if len(types) == 1 else "TYPE_STRING", [column.example for column in row])


def data_type_of(dtype: Any) -> str:
    """The type in config.pbtxt of values of a dtype of NumPy."""
    row = BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    return "TYPE_STRING" if row is None else row.config_name


def _chosen(names: List[str], chosen: Any) -> List[str]:
    """The names that a column transformer's choice stands for: names, places, a slice or a mask of places."""
    if isinstance(chosen, str):
        return [chosen]
    if isinstance(chosen, slice) and (isinstance(chosen.start, str) or isinstance(chosen.stop, str)):
        first = names.index(chosen.start) if chosen.start is not None else 0
        last = names.index(chosen.stop) if chosen.stop is not None else len(names) - 1
        return names[first : last + 1 : chosen.step]
    if not isinstance(chosen, slice) and len(np.atleast_1d(chosen)) and isinstance(np.atleast_1d(chosen)[0], str):
        return [str(name) for name in chosen]
    return [names[place] for place in np.atleast_1d(np.arange(len(names))[chosen])] if not _is_empty(chosen) else []


def _is_empty(chosen: Any) -> bool:
    return not isinstance(chosen, slice) and np.size(chosen) == 0


def _column_of(categories: "np.ndarray") -> Column:
    if not len(categories):
        return _NUMBER
    example = categories[0]
    if isinstance(example, str):
        return Column("TYPE_STRING", example)
    return Column(data_type_of(np.asarray(example).dtype), example)


_DEFAULT_NAME, _TEXT_NAME = "input", "text"
_STRING, _UNSET = "TYPE_STRING", "TYPE_INVALID"


class Matrix:
    """One input holds whole rows. The configuration may leave it out; ``example`` is one row."""

    def __init__(self, estimator: Any, configured: Sequence[Mapping[str, Any]]) -> None:
        entry = _only(configured, estimator)
        self._name = entry.get("name", _DEFAULT_NAME)
        width = getattr(estimator, "n_features_in_", -1)
        categories = categories_of_rows(estimator)
        data_type = _configured_type(entry) or (categories.data_type if categories else "TYPE_FP64")
        self.inputs = [TensorInfo(self._name, data_type, (-1, width))]
        dtype = np.object_ if data_type == _STRING else triton_string_to_numpy(data_type)
        value = "a" if data_type == _STRING else 0
        self.example = np.array([categories.example if categories else [value] * max(1, width)], dtype)

    def rows(self, inputs: "Mapping[str, np.ndarray]") -> "np.ndarray":
        """The argument for the estimator."""
        return _decoded(inputs[self._name])


class Texts:
    """One input holds a text per row. The arguments and attributes are those of :class:`Matrix`."""

    def __init__(self, estimator: Any, configured: Sequence[Mapping[str, Any]]) -> None:
        self._name = _only(configured, estimator).get("name", _TEXT_NAME)
        self.inputs = [TensorInfo(self._name, _STRING, (-1, 1))]
        self.example = np.array(["a"], np.object_)

    def rows(self, inputs: "Mapping[str, np.ndarray]") -> "np.ndarray":
        return _decoded(inputs[self._name]).reshape(-1)


class Columns:
    """Each column of the table is an input. The arguments and attributes are those of :class:`Matrix`."""

    def __init__(self, estimator: Any, configured: Sequence[Mapping[str, Any]], backend: str) -> None:
        self._frame = require("pandas", backend=backend, extra="sklearn").DataFrame
        types = {entry["name"]: _configured_type(entry) for entry in configured}
        found = columns(estimator)
        self._names: List[str] = list(found)
        self.inputs = [
            TensorInfo(name, _numeric_as_configured(types.get(name), column.data_type), (-1, 1))
            for name, column in found.items()
        ]
        self.example = self._frame({name: [column.example] for name, column in found.items()})

    def rows(self, inputs: "Mapping[str, np.ndarray]") -> Any:
        return self._frame({name: _decoded(inputs[name]).reshape(-1) for name in self._names})


def table_for(estimator: Any, configured: Sequence[Mapping[str, Any]], *, backend: str) -> Any:
    """How the inputs of a model reach its estimator: a :class:`Matrix`, :class:`Texts` or :class:`Columns`.

    Columns of different types are separate inputs; so are those of a table of numbers if the configuration names them.
    Otherwise one input holds all.
    """
    names = feature_names(estimator)
    if takes_columns(estimator) or (names and {entry["name"] for entry in configured} & set(names)):
        return Columns(estimator, configured, backend)
    return (Texts if takes_texts(estimator) else Matrix)(estimator, configured)


def _only(configured: Sequence[Mapping[str, Any]], estimator: Any) -> Mapping[str, Any]:
    if len(configured) > 1:
        names = feature_names(estimator)
        fitted = f"on the columns {', '.join(names)}" if names else "on an array without names of columns"
        raise TritonModelException(
            f"config.pbtxt has the inputs {', '.join(entry['name'] for entry in configured)}, and the estimator was fitted {fitted}: "
            "configure one input that holds whole rows, or inputs with the names of its columns"
        )
    return configured[0] if configured else {}


def _configured_type(entry: Mapping[str, Any]) -> Optional[str]:
    data_type: str = entry.get("data_type", _UNSET)
    return None if data_type == _UNSET else data_type


def _numeric_as_configured(configured: Optional[str], found: str) -> str:
    """Numbers may come in any type; texts and numbers must not be mixed up."""
    return configured if configured is not None and _STRING not in {configured, found} else found


def _decoded(array: "np.ndarray") -> "np.ndarray":
    """Strings as scikit-learn has them, from the bytes of a request; other arrays as they are."""
    if array.dtype != np.object_:
        return array
    decoded = np.empty(array.shape, np.object_)
    decoded.reshape(-1)[:] = [element.decode("utf-8") for element in array.reshape(-1).tolist()]
    return decoded


_OUTPUT_OF_METHOD = {
    "predict": "prediction",
    "predict_proba": "probabilities",
    "decision_function": "decision",
    "score_samples": "scores",
    "transform": "transformed",
}
"""The output that each method fills, in their usual order; ``predict`` of an estimator that names classes or groups
fills ``label``."""

_LABELS = "label"
_LABELLING = ("classifier", "clusterer", "outlier_detector")
"""Kinds of estimators that name a class or a group for each row."""

METHOD_NAMES = tuple(_OUTPUT_OF_METHOD)


class EstimatorMethod(NamedTuple):
    """A method of an estimator and the output that it fills; the result's first dimension is the rows'."""

    output: str
    call: Callable[[Any], "np.ndarray"]


def chosen_methods(estimator: Any, configured: Sequence[str], names: Optional[Sequence[str]]) -> List[EstimatorMethod]:
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
        return [EstimatorMethod(output, _call(estimator, name)) for output, name in zip(outputs, names)]
    method_of = {output: name for name, output in available.items()}
    outputs = configured or [available[name] for name in _usual(available)]
    for output in outputs:
        if output not in method_of:
            raise TritonModelException(
                f"config.pbtxt has the output '{output}', and the {kind} in the file gives {', '.join(method_of)}: rename it, "
                "or name the methods of your outputs in parameters METHODS"
            )
    return [EstimatorMethod(output, _call(estimator, method_of[output])) for output in outputs]


def tried(method: EstimatorMethod, example: Any, configured: Mapping[str, Any]) -> TensorInfo:
    """The output of a method, found out by calling it for one row.

    Its entry in the configuration may name its numeric type.
    """
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
    has_open_width = [int(size) for size in configured.get("dims", ())][-1:] == [-1]
    width = -1 if has_open_width else result.shape[1]
    return TensorInfo(method.output, data_type, (-1, width, *result.shape[2:]))


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
