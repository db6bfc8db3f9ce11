"""Reads estimators of scikit-learn from files, and never runs code in one that the model's author did not allow.

``model.skops`` holds data and names of types; each type that skops does not know to be harmless has to be allowed by
name. A pickle runs whatever code its writer put into it, so it is read only where the configuration says that the file
is trusted.
"""

import os
import pickle
import warnings
import zipfile
from typing import Any, List, Mapping

from pybackend_sdk.backend import choice, require, text
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger

ESTIMATOR_FILES = ("model.skops", "model.joblib", "model.pkl")
"""The usual names, the preferred one first."""

TRUSTED = "trusted"

ESTIMATOR_PARAMETERS = {"PICKLE": choice(TRUSTED), "TRUSTED_TYPES": text()}
"""The parameters of every backend that reads such files."""

_TREES = frozenset(
    {"sklearn.tree._tree.Tree", "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"},
)
"""Types that hold the numbers of trees and no code. skops lists them because damaged numbers can end the process."""


def read_estimator(path: str, parameters: Mapping[str, Any], *, backend: str) -> Any:
    """The estimator in a file of skops, joblib or pickle, by the file's ending."""
    require("sklearn", backend=backend, extra="sklearn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if path.endswith(".skops"):
            estimator = _from_skops(path, parameters.get("TRUSTED_TYPES", ""), backend)
        else:
            estimator = _from_pickle(path, parameters.get("PICKLE", ""), backend)
    for warning in dict.fromkeys(f"{each.category.__name__}: {each.message}" for each in caught):
        Logger.log_warn(f"{path}: {' '.join(warning.split())}")
    return estimator


def _from_skops(path: str, allowed: str, backend: str) -> Any:
    skops = require("skops.io", backend=backend, extra="sklearn")
    try:
        types: List[str] = skops.get_untrusted_types(file=path)
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise TritonModelException(
            f"{path} is not a whole file of skops ({_reason(error)}): write it with skops.io.dump(estimator, '{os.path.basename(path)}')"
        ) from None
    trusted = {name.strip() for name in allowed.split(",")} | _TREES
    refused = sorted(set(types) - trusted)
    if refused:
        raise TritonModelException(
            f"{path} holds types that skops does not know to be harmless: {', '.join(refused)}. If you trust the file, allow them in "
            f'config.pbtxt: parameters {{ key: "TRUSTED_TYPES" value {{ string_value: "{",".join(refused)}" }} }}'
        )
    try:
        return skops.load(path, trusted=types)
    except Exception as error:  # the file decides what is called
        raise TritonModelException(
            f"{path} cannot be loaded by the installed scikit-learn: {_reason(error)}"
        ) from error


def _from_pickle(path: str, word: str, backend: str) -> Any:
    name = os.path.basename(path)
    if word != TRUSTED:
        raise TritonModelException(
            f"{path} is a pickle, and reading one runs any code that its writer put into it. Save the estimator with "
            "skops.io.dump(estimator, 'model.skops') instead; or, if you trust the file, allow it in config.pbtxt: "
            f'parameters {{ key: "PICKLE" value {{ string_value: "{TRUSTED}" }} }}'
        )
    try:
        if name.endswith(".joblib"):
            return require("joblib", backend=backend, extra="sklearn").load(path)
        with open(path, "rb") as file:
            return pickle.load(file)  # noqa: S301  the author said so
    except TritonModelException:
        raise
    except Exception as error:  # a pickle runs any code
        if _is_no_pickle(error):
            raise TritonModelException(
                f"{path} cannot be loaded: {_reason(error)}. The file is truncated, or no pickle: joblib.dump(estimator, "
                "'model.joblib') writes one"
            ) from None
        raise TritonModelException(f"{path} cannot be loaded: {_reason(error)}") from error


def _is_no_pickle(error: Exception) -> bool:
    """Whether the unpickler itself has raised an error.

    For an unknown byte, joblib's raises a KeyError with that byte.
    """
    unknown_byte = isinstance(error, KeyError) and isinstance(error.args[0], int)
    return unknown_byte or isinstance(error, (EOFError, pickle.UnpicklingError))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
