"""The backend: completes the configuration of a model from its SavedModel, and answers requests with TensorFlow."""

import json
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from pybackend_sdk.backend import (
    Ignored,
    Signature,
    TensorInfo,
    check_config,
    complete_config,
    execute_batch,
    memory_advice,
    model_path,
    read_parameters,
    require,
    text,
    threads_per_instance,
    whole_number,
)
from pybackend_sdk.backend.signature import VARIABLE
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.spelling import closest
from pybackend_wire.dtypes import BY_NUMPY

BACKEND = EXTRA = "tensorflow"
DIRECTORIES = ("model.savedmodel",)

_GRAPH_PLATFORM = "tensorflow_graphdef"
_DESCRIPTIONS = ("saved_model.pb", "saved_model.cpb", "saved_model.pbtxt")
_HOW_TO_CONVERT = (
    "A frozen graph does not state its inputs and outputs, and TensorFlow 2 writes none: convert it to a SavedModel, "
    "model.savedmodel, with tensorflow.compat.v1.saved_model.simple_save, and remove platform"
)

_DATA_TYPES = {f"DT_{row.name}": row.config_name for row in BY_NUMPY.values()}
_DATA_TYPES.update(DT_HALF="TYPE_FP16", DT_FLOAT="TYPE_FP32", DT_DOUBLE="TYPE_FP64", DT_STRING="TYPE_STRING")


class ServedSignature(NamedTuple):
    """One signature of a SavedModel: the tags of its graph, and the graph's name of each input and output, by name."""

    tags: List[str]
    signature: Signature
    inputs: Dict[str, str]
    outputs: Dict[str, str]


def tensorflow() -> Any:
    """The module ``tensorflow``, whose own log has errors only."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    module = require("tensorflow", backend=BACKEND, extra=EXTRA)
    module.get_logger().setLevel("ERROR")
    return module


def find_directory(config: Mapping[str, Any]) -> str:
    """The path of a model's SavedModel."""
    name, file = config["name"], config.get("default_model_filename", "")
    if config.get("platform") == _GRAPH_PLATFORM or file.endswith((".graphdef", ".pb")):
        raise TritonModelException(
            f"model '{name}': platform \"{_GRAPH_PLATFORM}\" is not supported. {_HOW_TO_CONVERT}"
        )
    if file.endswith(".tflite"):
        raise TritonModelException(f"model '{name}': {file} is a file of LiteRT: write backend: \"litert\"")
    path = model_path(config, (*DIRECTORIES, "model.graphdef"))
    if path.endswith("model.graphdef"):
        raise TritonModelException(
            f"model '{name}': {path} is a frozen graph, which is not supported. {_HOW_TO_CONVERT}"
        )
    if not any(os.path.isfile(os.path.join(path, each)) for each in _DESCRIPTIONS):
        raise TritonModelException(
            f"model '{name}': {path} is no SavedModel: a SavedModel is a directory with {_DESCRIPTIONS[0]} and variables, as "
            "tensorflow.saved_model.save(model, path) or model.export(path) of Keras write it"
        )
    return path


def read_signature(config: Mapping[str, Any], path: str, *, tag: str, key: str) -> ServedSignature:
    """Read one signature of a SavedModel, the usual one if the key is empty."""
    graphs = _graphs(config, path)
    if not graphs:
        raise TritonModelException(
            f"model '{config['name']}': {path} holds no graph: its saved_model.pb is empty, or not one of TensorFlow"
        )
    graph = next((each for each in graphs if tag in each.meta_info_def.tags), None)
    if graph is None:
        tags = "; ".join(", ".join(each.meta_info_def.tags) or "none" for each in graphs)
        raise TritonModelException(
            f"model '{config['name']}': no graph of {path} has the tag '{tag}', their tags are {tags}: parameters TF_GRAPH_TAG "
            "chooses one"
        )
    found = graph.signature_def[_key(config, path, graph, key)]
    inputs = [_tensor_info(config, path, "input", name, each) for name, each in sorted(found.inputs.items())]
    outputs, left_out = [], []
    for name, each in sorted(found.outputs.items()):
        if each.name and _type_name(each) in _DATA_TYPES:
            outputs.append(_tensor_info(config, path, "output", name, each))
        else:
            left_out.append(f"'{name}' ({_type_name(each)})")
    if left_out:
        Logger.log_warn(
            f"model '{config['name']}': {path} has outputs that cannot be sent and are left out: {', '.join(left_out)}"
        )
    return ServedSignature(
        list(graph.meta_info_def.tags),
        Signature(inputs, outputs),
        {tensor.name: found.inputs[tensor.name].name for tensor in inputs},
        {tensor.name: found.outputs[tensor.name].name for tensor in outputs},
    )


def _graphs(config: Mapping[str, Any], path: str) -> List[Any]:
    tensorflow()
    loader = require("tensorflow.python.saved_model.loader_impl", backend=BACKEND, extra=EXTRA)
    try:
        return list(loader.parse_saved_model(path).meta_graphs)
    except Exception as error:  # noqa: BLE001  the library's errors have no common base
        raise TritonModelException(
            f"model '{config['name']}': {path} cannot be read: {one_line(error)}. Its {_DESCRIPTIONS[0]} is truncated, or not "
            "one of TensorFlow"
        ) from None


def _key(config: Mapping[str, Any], path: str, graph: Any, key: str) -> str:
    """The name of a signature; without a configured one, the usual one, or the only one."""
    # Loading initialises the model by operations that are listed as signatures, too.
    keys = sorted(name for name in graph.signature_def if not name.startswith("__"))
    wanted = key or ("serving_default" if "serving_default" in keys else keys[0] if len(keys) == 1 else "")
    if wanted in keys:
        return wanted
    near = closest(wanted, keys) if wanted else None
    advice = f"did you mean {near}?" if near else f"it has {', '.join(keys) or 'none'}."
    raise TritonModelException(
        f"model '{config['name']}': {path} has no signature '{wanted or 'serving_default'}': {advice} Parameters "
        "TF_SIGNATURE_DEF chooses one"
    )


def _tensor_info(config: Mapping[str, Any], path: str, kind: str, name: str, each: Any) -> TensorInfo:
    data_type = _DATA_TYPES.get(_type_name(each))
    if data_type is None or not each.name:
        raise TritonModelException(
            f"model '{config['name']}': {kind} '{name}' of {path} is of type {_type_name(each)}, and only dense tensors of "
            "numbers, bools and strings can be sent: export a signature with such inputs"
        )
    return TensorInfo(name, data_type, _shape(each.tensor_shape))


def _type_name(each: Any) -> str:
    """E.g. ``DT_FLOAT``; for sparse and ragged tensors how they are encoded."""
    if not each.name:
        return str(each.WhichOneof("encoding") or "nothing")
    types = require("tensorflow.core.framework.types_pb2", backend=BACKEND, extra=EXTRA)
    return str(types.DataType.Name(each.dtype))


def _shape(shape: Any) -> Optional[Tuple[int, ...]]:
    if shape.unknown_rank:
        return None
    return tuple(size.size if size.size >= 0 else VARIABLE for size in shape.dim)


def one_line(error: Exception) -> str:
    """The library's message on one line, without what it lists after the first sentence."""
    text = " ".join(str(getattr(error, "message", error)).split()).partition(" Hint: ")[0]
    return text.rstrip(".")[:_MOST_CHARACTERS]


_MOST_CHARACTERS = 500


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
"""The library's ``global_jit_level`` by ``optimization.graph.level``, as in the reference; other levels leave it alone.
"""

_MOST_CALLABLES = 32
"""Clients choose which outputs they want, and each choice has its own prepared call."""


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


class TensorFlowComputation:
    """Computes a model's outputs."""

    def __init__(self, session: Any, served: ServedSignature) -> None:
        self._session = session
        self._inputs, self._outputs = served.inputs, served.outputs
        self._scalars = {tensor.name for tensor in served.signature.inputs if tensor.shape == ()}
        self._callables: Dict[Tuple[str, ...], Callable[..., List[Any]]] = {}

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> "Mapping[str, np.ndarray]":
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
        document = config.as_dict()
        path = find_directory(document)
        return complete_config(
            config, _signature(document, path, read_parameters(document, PARAMETERS)).signature, path
        )

    def initialize(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        path, settings = find_directory(config), read_parameters(config, PARAMETERS)
        served = _signature(config, path, settings)
        check_config(config, served.signature, path)
        gpu = args["model_instance_device_id"] if args["model_instance_kind"] == "GPU" else ""
        self._session = open_session(config, path, served, settings, gpu)
        self._batches = config["max_batch_size"] > 0
        self._computation = TensorFlowComputation(self._session, served)

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        return execute_batch(requests, self._computation, batches=self._batches)

    def finalize(self) -> None:
        self._session.close()


def _signature(config: Mapping[str, Any], path: str, settings: Mapping[str, Any]) -> ServedSignature:
    return read_signature(
        config, path, tag=settings.get("TF_GRAPH_TAG", "serve"), key=settings.get("TF_SIGNATURE_DEF", "")
    )
