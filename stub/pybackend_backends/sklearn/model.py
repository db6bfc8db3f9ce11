"""The backend: completes the configuration of a model from its estimator, and answers requests with it."""

import json
import os
import warnings
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from pybackend_backends.estimator_file import ESTIMATOR_FILES, ESTIMATOR_PARAMETERS, read_estimator
from pybackend_backends.output_memory import empty_outputs
from pybackend_sdk.backend import (
    Signature,
    check_config,
    complete_config,
    execute_batch,
    model_path,
    read_parameters,
    require,
    text,
    threads_per_instance,
)
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse

_BACKEND, _EXTRA = "sklearn", "sklearn"
_PARAMETERS = {"METHODS": text(), **ESTIMATOR_PARAMETERS}
_BATCH_SIZE = 32768
"""The default of ``max_batch_size``: clients send tables."""

# Threads that wait for their share of a computation must not spin on the cores of the other instances.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class TritonPythonModel:
    """A model of one estimator or pipeline."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        document = config.as_dict()
        file = _EstimatorFile(document)
        return complete_config(config, file.signature, file.path, batch_size=_BATCH_SIZE)

    def initialize(self, args: Dict[str, str]) -> None:
        from pybackend_backends.sklearn.estimator import converter

        config = json.loads(args["model_config"])
        self._restrict_threads(threads_per_instance(config))
        file = _EstimatorFile(config)
        check_config(config, file.signature, file.path)
        self._empty = empty_outputs(file.signature)
        self._table = file.table
        types = {output["name"]: output["data_type"] for output in config["output"]}
        self._outputs = {
            method.output: (method.call, converter(types[method.output]))
            for method in file.methods
            if method.output in types
        }
        self._batches = config["max_batch_size"] > 0
        self._repeats = file.path.endswith(".skops")  # others can hold any code, which may leave something behind

    def _restrict_threads(self, threads: int) -> None:
        """Let the native libraries below use their share of the cores, and estimators none of joblib's workers.

        A forest that was saved with ``n_jobs=-1`` would start threads for each request: 20 ms instead of 2 for one row.
        """
        # Both last as long as they are referred to; joblib's also belongs to this thread, which calls ``execute``.
        self._native = require("threadpoolctl", backend=_BACKEND, extra=_EXTRA).threadpool_limits(threads)
        self._jobs = require("joblib", backend=_BACKEND, extra=_EXTRA).parallel_config("sequential")
        # A table without names of columns is what one input holds.
        warnings.filterwarnings("ignore", "X does not have valid feature names")

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        return execute_batch(requests, self._run, batches=self._batches, repeats=self._repeats)

    def _run(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> "Mapping[str, np.ndarray]":
        if not all(len(array) for array in inputs.values()):
            return self._empty  # scikit-learn refuses tables without rows
        rows = self._table.rows(inputs)
        outputs = {}
        for name in names:
            call, convert = self._outputs[name]
            outputs[name] = convert(call(rows))
        return outputs

    def finalize(self) -> None:
        del self._outputs


class _EstimatorFile:
    """A model's file, and the signature of the estimator in it as the configuration asks for it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        parameters = read_parameters(config, _PARAMETERS)
        self.path = model_path(config, ESTIMATOR_FILES)
        estimator = read_estimator(self.path, parameters, backend=_BACKEND)
        # scikit-learn is there: the file has been read.
        from pybackend_backends.sklearn.estimator import chosen_methods, table_for, tried

        configured = {output["name"]: output for output in config.get("output", ())}
        self.table = table_for(estimator, config.get("input", ()), backend=_BACKEND)
        try:
            self.methods = chosen_methods(estimator, list(configured), _listed(parameters.get("METHODS")))
            outputs = [tried(method, self.table.example, configured.get(method.output, {})) for method in self.methods]
        except TritonModelException as error:
            raise TritonModelException(f"model '{config['name']}', {self.path}: {error}") from None
        self.signature = Signature(self.table.inputs, outputs)


def _listed(value: Any) -> Any:
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]
