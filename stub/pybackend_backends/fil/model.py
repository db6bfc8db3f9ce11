"""The backend: completes the configuration of a model from its forest, and answers requests with it."""

import json
import os
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

from pybackend_backends.estimator_file import ESTIMATOR_FILES, ESTIMATOR_PARAMETERS, read_estimator
from pybackend_backends.fil.forest import Forest, UnreadableForest
from pybackend_backends.output_memory import empty_outputs
from pybackend_sdk.backend import (
    Ignored,
    Signature,
    TensorInfo,
    boolean,
    check_config,
    choice,
    complete_config,
    execute_batch,
    model_path,
    number,
    read_parameters,
    require,
    threads_per_instance,
)
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse

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
    """A model's file and the forest in it; ``parameters`` are the model's, by name."""

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


_INPUT, _OUTPUT, _CONTRIBUTIONS = "input__0", "output__0", "treeshap_output"
_FP32 = "TYPE_FP32"
_BATCH_SIZE = 32768
"""The default of ``max_batch_size``: clients send tables."""

# Threads that wait for their share of a prediction must not spin on the cores of the other instances.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


Answer = Callable[["np.ndarray"], "np.ndarray"]
"""Turns ``[rows, width]`` into ``[rows, answer_width]``."""

DEFAULT_THRESHOLD = 0.5


class AnswerForm:
    """What clients get: the forest's own answer, a class, or a probability for each class; ``width`` numbers per row.

    The parameters ``is_classifier`` (or ``output_class``, its older name), ``predict_proba`` and ``threshold`` choose.
    """

    def __init__(self, forest: Forest, parameters: Mapping[str, Any]) -> None:
        wants_class = parameters.get("is_classifier", parameters.get("output_class", False))
        self.width = forest.width
        self.convert: Answer = lambda answers: answers
        if parameters.get("predict_proba", False):
            _check_probabilities(forest)
            if forest.width == 1:
                self.width, self.convert = 2, _both_probabilities
        elif wants_class:
            self.width, self.convert = 1, _chosen_class(forest, parameters.get("threshold"))


def _check_probabilities(forest: Forest) -> None:
    if not forest.gives_probabilities:
        raise TritonModelException(
            f"parameters predict_proba is true, but a forest of {forest.library} with the objective {forest.objective} gives no "
            "probabilities: leave it out"
        )


def _chosen_class(forest: Forest, threshold: Any) -> Answer:
    if forest.width <= 2:
        limit = DEFAULT_THRESHOLD if threshold is None else threshold
        return lambda answers: answers[:, -1:] > limit
    return lambda answers: answers.argmax(axis=1)[:, np.newaxis]


def _both_probabilities(answers: "np.ndarray") -> "np.ndarray":
    return np.hstack([1 - answers, answers])


class TritonPythonModel:
    """A model of one forest."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        """Fill in the tensors and the batching; Shapley values are only for models that configure them."""
        document = config.as_dict()
        file = ForestFile(document)
        signature = _signature(document, file.forest, AnswerForm(file.forest, file.parameters))
        return complete_config(config, signature, file.path, batch_size=_BATCH_SIZE)

    def initialize(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        file = ForestFile(config)
        self._forest = file.forest
        self._form = AnswerForm(file.forest, file.parameters)
        signature = _signature(config, file.forest, self._form)
        check_config(config, signature, file.path)
        self._empty = empty_outputs(signature)
        self._batches = config["max_batch_size"] > 0

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        return execute_batch(requests, self._run, batches=self._batches, repeats=True)

    def _run(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> "Mapping[str, np.ndarray]":
        rows = inputs[_INPUT]
        if not len(rows):
            return self._empty  # the libraries refuse tables without rows
        outputs = {}
        if _OUTPUT in names:
            outputs[_OUTPUT] = self._form.convert(self._forest.predict(rows)).astype(np.float32, copy=False)
        if _CONTRIBUTIONS in names:
            outputs[_CONTRIBUTIONS] = self._forest.contributions(rows).astype(np.float32, copy=False)
        return outputs

    def finalize(self) -> None:
        del self._forest


def _signature(config: Mapping[str, Any], forest: Forest, form: AnswerForm) -> Signature:
    """The tensors of a forest, under the names that clients of this backend expect."""
    outputs = [TensorInfo(_OUTPUT, _FP32, (-1, form.width))]
    if any(output["name"] == _CONTRIBUTIONS for output in config.get("output", ())):
        if not forest.has_contributions:
            raise TritonModelException(
                f"model '{config['name']}': {forest.library} computes no Shapley values: take the output {_CONTRIBUTIONS} out of "
                "config.pbtxt, or serve a forest of XGBoost or LightGBM"
            )
        per_class = () if forest.width == 1 else (forest.width,)
        outputs.append(TensorInfo(_CONTRIBUTIONS, _FP32, (-1, *per_class, forest.features + 1)))
    return Signature([TensorInfo(_INPUT, _FP32, (-1, forest.features))], outputs)
