"""From a request's inputs to what an estimator takes: an array, a list of texts, or a table with named columns."""

from typing import Any, List, Mapping, Optional, Sequence

import numpy as np

from pybackend_backends.sklearn.structure import categories_of_rows, columns, feature_names, takes_columns, takes_texts
from pybackend_sdk.backend import TensorInfo, require
from pybackend_sdk.datatypes import triton_string_to_numpy
from pybackend_sdk.error import TritonModelException

_DEFAULT_NAME, _TEXT_NAME = "input", "text"
_STRING, _UNSET = "TYPE_STRING", "TYPE_INVALID"


class Matrix:
    """One input holds whole rows.

    Args:
        configured: entries of the inputs in the configuration, none if it leaves them out.

    Attributes:
        inputs: of the model.
        example: one row.

    Raises:
        TritonModelException: the configuration has several inputs.
    """

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
        """The argument for the estimator."""
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
        """The argument for the estimator."""
        return self._frame({name: _decoded(inputs[name]).reshape(-1) for name in self._names})


def table_for(estimator: Any, configured: Sequence[Mapping[str, Any]], *, backend: str) -> Any:
    """How the inputs of a model reach its estimator.

    Columns of different types are separate inputs; so are those of a table of numbers if the configuration names them. Otherwise
    one input holds all.

    Returns:
        A :class:`Matrix`, :class:`Texts` or :class:`Columns`.
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
