"""Finds a model's forest, and reads it with the library that its type belongs to."""

import os
from typing import Any, Dict, Mapping, Sequence

from pybackend_backends.estimator_file import ESTIMATOR_FILES, ESTIMATOR_PARAMETERS, read_estimator
from pybackend_backends.fil.forest import Forest, UnreadableForest
from pybackend_sdk.backend import (
    Ignored,
    boolean,
    choice,
    model_path,
    number,
    read_parameters,
    require,
    threads_per_instance,
)
from pybackend_sdk.error import TritonModelException

BACKEND, EXTRA = "fil", "forests"

_FILES: Mapping[str, Sequence[str]] = {
    "xgboost_ubj": ("xgboost.ubj",),
    "xgboost_json": ("xgboost.json",),
    "xgboost": ("xgboost.model",),
    "lightgbm": ("model.txt",),
    "treelite_checkpoint": ("checkpoint.tl",),
    "sklearn": ESTIMATOR_FILES,
}
"""The usual names of the files of each ``model_type``."""

_TYPE_OF_ENDING = {os.path.splitext(name)[1]: kind for kind, names in _FILES.items() for name in names}

_GPU_ONLY = Ignored("it concerns GPUs only")
PARAMETERS = {
    "model_type": choice(*_FILES),
    "is_classifier": boolean(),
    "output_class": boolean(),
    "predict_proba": boolean(),
    "threshold": number(),
    "xgboost_allow_unknown_field": Ignored("XGBoost itself reads the file, and passes over fields that it does not know"),
    **ESTIMATOR_PARAMETERS,
    **dict.fromkeys(
        (
            "algo", "blocks_per_sm", "chunk_size", "device_id", "layout", "storage_type", "threads_per_tree", "transfer_threshold",
            "use_experimental_optimizations",
        ),
        _GPU_ONLY,
    ),
}  # fmt: skip


class ForestFile:
    """A model's file and the forest in it.

    Attributes:
        parameters: the model's, by name.

    Raises:
        TritonModelException: there is no such file, its library is missing, or it cannot be read.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.parameters: Dict[str, Any] = read_parameters(config, PARAMETERS)
        kind = self.parameters.get("model_type")
        names = _FILES[kind] if kind else [name for names in _FILES.values() for name in names]
        self.path = model_path(config, names)
        kind = kind or _type_of(self.path)
        try:
            self.forest = _read(kind, self.path, self.parameters, threads_per_instance(config))
        except UnreadableForest as error:
            raise TritonModelException(
                f"model '{config['name']}': {self.path} cannot be read as model_type {kind}: {error}"
            ) from None


def _type_of(path: str) -> str:
    ending = os.path.splitext(path)[1]
    kind = _TYPE_OF_ENDING.get(ending)
    if kind is None:
        raise TritonModelException(
            f"the file name {os.path.basename(path)} does not tell what kind of forest is in it: say so in config.pbtxt, parameters "
            f"model_type: {', '.join(_FILES)}"
        )
    return kind


def _read(kind: str, path: str, parameters: Mapping[str, Any], threads: int) -> Forest:
    """The forest in a file. Each module imported here needs another library; only one has to be installed."""
    if kind in {"xgboost_ubj", "xgboost_json", "xgboost"}:
        require("xgboost", backend=BACKEND, extra=EXTRA)
        from pybackend_backends.fil.xgboost_forest import XGBoostForest

        return XGBoostForest(_content(path), threads)
    if kind == "lightgbm":
        require("lightgbm", backend=BACKEND, extra=EXTRA)
        from pybackend_backends.fil.lightgbm_forest import LightGBMForest

        return LightGBMForest(_content(path), threads)
    require("treelite", backend=BACKEND, extra=EXTRA)
    from pybackend_backends.fil import treelite_forest

    if kind == "treelite_checkpoint":
        return treelite_forest.checkpoint_forest(path, threads)
    return treelite_forest.estimator_forest(read_estimator(path, parameters, backend=BACKEND), threads)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
