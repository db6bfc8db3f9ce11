"""Looks into a fitted estimator or pipeline: what its first step takes, and the types of its columns."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional

import numpy as np

_TYPE_OF_KIND = {"O": "TYPE_STRING", "U": "TYPE_STRING", "T": "TYPE_STRING", "b": "TYPE_BOOL"}


class Column(NamedTuple):
    """A column of the table that an estimator was fitted on.

    Attributes:
        data_type: as in config.pbtxt.
        example: a value that the estimator accepts.
    """

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
    """The values of an array whose columns are categories, as encoders have them; None if the input is no such array."""
    categories = getattr(first_step(estimator), "categories_", ())
    if not len(categories) or hasattr(first_step(estimator), "transformers_"):
        return None
    row = [_column_of(values) for values in categories]
    types = {column.data_type for column in row}
    return Column(types.pop() if len(types) == 1 else "TYPE_STRING", [column.example for column in row])


def data_type_of(dtype: Any) -> str:
    """The type in config.pbtxt of values of a dtype of NumPy."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iuf":
        return f"TYPE_{ {'i': 'INT', 'u': 'UINT', 'f': 'FP'}[dtype.kind] }{dtype.itemsize * 8}"
    return _TYPE_OF_KIND.get(dtype.kind, "TYPE_STRING")


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
