"""The backend: completes the configuration of a model from its SavedModel, and answers requests with TensorFlow."""

import json
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from pybackend_backends.tensorflow.saved_model import (
    ServedSignature,
    find_directory,
    one_line,
    read_signature,
    tensorflow,
)
from pybackend_sdk.backend import (
    Ignored,
    check_config,
    complete_config,
    execute_batch,
    memory_advice,
    read_parameters,
    text,
    threads_per_instance,
    whole_number,
)
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse

_ONE_SESSION = Ignored("each instance is a process with one session and its own threads")

PARAMETERS = {
    "TF_SIGNATURE_DEF": text(),
    "TF_GRAPH_TAG": text(),
    "TF_NUM_INTRA_THREADS": whole_number(at_least=0),
    "TF_NUM_INTER_THREADS": whole_number(at_least=0),
    "TF_USE_PER_SESSION_THREADS": _ONE_SESSION,
    "MAX_SESSION_SHARE_COUNT": _ONE_SESSION,
    "TF_INIT_OPS_FILE": Ignored("it concerns frozen graphs only"),
}

_XLA_LEVELS = {-1: -1, 1: 1, 2: 2}
"""The library's ``global_jit_level`` by ``optimization.graph.level``, as in the reference; other levels leave it alone."""

_MOST_CALLABLES = 32
"""Clients choose which outputs they want, and each choice has its own prepared call."""


def read_settings(config: Mapping[str, Any]) -> Dict[str, Any]:
    """The parameters of a model."""
    return read_parameters(config, PARAMETERS)


def open_session(
    config: Mapping[str, Any], path: str, served: ServedSignature, settings: Mapping[str, Any], gpu: str
) -> Any:
    """Load a SavedModel for computing on the GPU of that number, on the CPU if that is empty."""
    tf = tensorflow()
    threads = threads_per_instance(config)
    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=settings.get("TF_NUM_INTRA_THREADS") or threads,
        inter_op_parallelism_threads=settings.get("TF_NUM_INTER_THREADS") or threads,
        allow_soft_placement=True,
    )
    if gpu:
        options.gpu_options.visible_device_list = gpu
    else:
        options.device_count["GPU"] = 0
    level = int((config.get("optimization", {}).get("graph") or {}).get("level", 0))
    if level in _XLA_LEVELS:
        options.graph_options.optimizer_options.global_jit_level = _XLA_LEVELS[level]
    session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
    try:
        with session.graph.as_default():
            tf.compat.v1.saved_model.load(session, served.tags, path)
    except Exception as error:  # noqa: BLE001  the library's errors have no common base
        raise TritonModelException(
            f"model '{config['name']}': TensorFlow {tf.__version__} cannot load {path}: {one_line(error)}. {_advice(error)}"
        ) from None
    return session


def _advice(error: Exception) -> str:
    if "not registered" in str(error).lower():
        return "A newer TensorFlow, or the package with these operations, in the model's environment mends it"
    return memory_advice(error) or "Its variables may be missing or truncated: copy the whole directory again"


class Computation:
    """Computes a model's outputs."""

    def __init__(self, session: Any, served: ServedSignature) -> None:
        self._session = session
        self._inputs, self._outputs = served.inputs, served.outputs
        self._scalars = {tensor.name for tensor in served.signature.inputs if tensor.shape == ()}
        self._callables: Dict[Tuple[str, ...], Callable[..., List[Any]]] = {}

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> "Mapping[str, np.ndarray]":
        """Compute the named outputs; arguments and result as of :data:`pybackend_sdk.backend.Run`."""
        arrays = [inputs[name].reshape(()) if name in self._scalars else inputs[name] for name in self._inputs]
        try:
            values = self._callable(tuple(names))(*arrays)
        except Exception as error:  # noqa: BLE001  the library's errors have no common base
            advice = memory_advice(error)
            reason = f"{one_line(error)}. {advice}" if advice else one_line(error)
            raise TritonModelException(f"TensorFlow cannot compute this request: {reason}") from None
        return {name: _array(value) for name, value in zip(names, values)}

    def _callable(self, names: "Tuple[str, ...]") -> Callable[..., List[Any]]:
        found = self._callables.get(names)
        if found is None:
            if len(self._callables) >= _MOST_CALLABLES:
                self._callables.clear()
            fetches = [self._outputs[name] for name in names]
            found = self._callables[names] = self._session.make_callable(fetches, list(self._inputs.values()))
        return found


def _array(value: Any) -> "np.ndarray":
    """An output as an array; the library returns scalars as such."""
    return np.asarray(value, np.object_) if isinstance(value, bytes) else np.asarray(value)


class TritonPythonModel:
    """A model of one SavedModel directory."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        """Fill in the tensors and the batching that the signature states."""
        document = config.as_dict()
        path = find_directory(document)
        return complete_config(config, _signature(document, path, read_settings(document)).signature, path)

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the SavedModel."""
        config = json.loads(args["model_config"])
        path, settings = find_directory(config), read_settings(config)
        served = _signature(config, path, settings)
        check_config(config, served.signature, path)
        gpu = args["model_instance_device_id"] if args["model_instance_kind"] == "GPU" else ""
        self._session = open_session(config, path, served, settings, gpu)
        self._batches = config["max_batch_size"] > 0
        self._computation = Computation(self._session, served)

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        """Compute the requests, together if the model batches."""
        return execute_batch(requests, self._computation, batches=self._batches)

    def finalize(self) -> None:
        """Release the model."""
        self._session.close()


def _signature(config: Mapping[str, Any], path: str, settings: Mapping[str, Any]) -> ServedSignature:
    return read_signature(
        config, path, tag=settings.get("TF_GRAPH_TAG", "serve"), key=settings.get("TF_SIGNATURE_DEF", "")
    )
