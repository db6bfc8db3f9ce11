"""The backend: completes the configuration of a model from its file, and answers requests with ONNX Runtime."""

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from pybackend_backends.output_memory import SizedOutputs
from pybackend_sdk.backend import (
    Ignored,
    Signature,
    TensorInfo,
    boolean,
    check_config,
    choice,
    complete_config,
    execute_batch,
    memory_advice,
    model_path,
    model_tensors,
    read_parameters,
    require,
    text,
    threads_per_instance,
    whole_number,
)
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_wire.dtypes import BY_NUMPY

BACKEND, EXTRA, FILE = "onnxruntime", "onnx", "model.onnx"

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_ACCELERATORS = {
    "cuda": _CUDA,
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "dnnl": "DnnlExecutionProvider",
}
_GPU_ONLY = Ignored("it concerns GPUs only")

_SHRINKAGE = "memory.enable_memory_arena_shrinkage"

PARAMETERS = {
    "intra_op_thread_count": whole_number(at_least=0),
    "inter_op_thread_count": whole_number(at_least=0),
    "execution_mode": choice("0", "1"),
    "enable_mem_arena": boolean(),
    "enable_mem_pattern": boolean(),
    _SHRINKAGE: text(),
    "execution_providers": text(),
    "cudnn_conv_algo_search": _GPU_ONLY,
    "cudnn_conv_use_max_workspace": _GPU_ONLY,
    "gpu_mem_limit": _GPU_ONLY,
    "arena_extend_strategy": _GPU_ONLY,
    "do_copy_in_default_stream": _GPU_ONLY,
}
SESSION_PREFIXES = ("session.", "optimization.", "ep.", "mlas.")
"""Of configuration entries that ONNX Runtime reads itself."""

_DATA_TYPES = {f"tensor({dtype.name})": row.config_name for dtype, row in BY_NUMPY.items()}
_DATA_TYPES.update({"tensor(float)": "TYPE_FP32", "tensor(double)": "TYPE_FP64", "tensor(string)": "TYPE_STRING"})

_DEFAULT_ENTRIES = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
"""Threads that wait for work in a loop take the cores from the server and from other instances: on two busy cores a
network of 10 ms took twice as long and twice the CPU time with it."""

_ERROR = 3
"""Level of the library's log lines."""

_BASIC, _EXTENDED, _NONE = -1, 1, 2
"""Values of ``optimization.graph.level``, as the reference reads them; any other asks for all optimizations."""


def model_file(config: Mapping[str, Any]) -> str:
    """The ONNX file of a model: ``model.onnx``, or the file of that name in a directory of that name."""
    path = model_path(config, [FILE])
    if not os.path.isdir(path):
        return path
    inner = os.path.join(path, FILE)
    if os.path.isfile(inner):
        return inner
    raise TritonModelException(
        f"model '{config['name']}': the directory {path} holds no {FILE}: a model with external data is a directory "
        f"{FILE} with the file {FILE} and its data in it"
    )


def open_session(config: Mapping[str, Any], path: str, kind: str, device_id: str) -> Tuple[Any, Any]:
    """Load the model's file for computing.

    Returns the session, and the options of its runs, None for the usual ones.
    """
    ort = _runtime()
    values = read_parameters(config, PARAMETERS, SESSION_PREFIXES)
    options = ort.SessionOptions()
    options.intra_op_num_threads = values.get("intra_op_thread_count") or threads_per_instance(config)
    options.inter_op_num_threads = values.get("inter_op_thread_count") or 1
    if values.get("execution_mode") == "1":
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = values.get("inter_op_thread_count") or options.intra_op_num_threads
    options.enable_cpu_mem_arena = values.get("enable_mem_arena", True)
    options.enable_mem_pattern = values.get("enable_mem_pattern", True)
    options.graph_optimization_level = _optimization_level(ort, config)
    options.log_severity_level = _ERROR
    for name, value in {**_DEFAULT_ENTRIES, **values}.items():
        if name.startswith(SESSION_PREFIXES):
            options.add_session_config_entry(name, value)
    session = _session(ort, config, path, options, _providers(ort, config, values, kind, device_id))
    run_options = None
    if values.get(_SHRINKAGE):
        run_options = ort.RunOptions()
        run_options.add_run_config_entry(_SHRINKAGE, values[_SHRINKAGE])
    return session, run_options


def read_signature(config: Mapping[str, Any], path: str) -> Signature:
    """The inputs and outputs of a model's file. It is loaded without optimizations, which take most of the time."""
    ort = _runtime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = _ERROR
    options.add_session_config_entry("session.disable_prepacking", "1")
    return signature_of(config, _session(ort, config, path, options, [_CPU]), path)


def signature_of(config: Mapping[str, Any], session: Any, path: str) -> Signature:
    """The inputs and outputs of an open session.

    Outputs that are no tensors are left out with a warning. Initial values that requests may replace count as optional
    inputs if the configuration names them.
    """
    file = os.path.basename(path)
    named = {tensor["name"] for tensor in model_tensors(config, "input")}
    replaceable = [value for value in session.get_overridable_initializers() if value.name in named]
    inputs = []
    for value in session.get_inputs():
        if value.type not in _DATA_TYPES:
            raise TritonModelException(
                f"model '{config['name']}': input '{value.name}' of {file} is of type {value.type}, and only tensors of "
                "numbers, bools and strings can be sent: export the model with such inputs"
            )
        inputs.append(_tensor_info(value))
    inputs += [_tensor_info(value, optional=True) for value in replaceable if value.type in _DATA_TYPES]
    outputs, left_out = [], []
    for value in session.get_outputs():
        if value.type in _DATA_TYPES:
            outputs.append(_tensor_info(value))
        else:
            left_out.append(f"'{value.name}' ({value.type})")
    if left_out and not outputs:
        raise TritonModelException(
            f"model '{config['name']}': no output of {file} is a tensor of numbers, bools or strings: {', '.join(left_out)}"
        )
    if left_out:
        Logger.log_warn(
            f"model '{config['name']}': {file} has outputs that cannot be sent and are left out: {', '.join(left_out)}. "
            "For a classifier made by skl2onnx, the option zipmap=False gives its probabilities as a tensor"
        )
    return Signature(inputs, outputs)


def _tensor_info(value: Any, optional: bool = False) -> TensorInfo:
    # Dimensions of any size are None, or names.
    shape: Optional[Tuple[int, ...]] = tuple(
        size if isinstance(size, int) and size >= 0 else -1 for size in value.shape
    )
    return TensorInfo(value.name, _DATA_TYPES[value.type], shape, optional)


def _runtime() -> Any:
    # From version 1.32 on, the library reports its use to its makers over the network.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return require("onnxruntime", backend=BACKEND, extra=EXTRA)


def _session(ort: Any, config: Mapping[str, Any], path: str, options: Any, providers: Sequence[Any]) -> Any:
    try:
        return ort.InferenceSession(path, options, providers=providers)
    except Exception as error:  # noqa: BLE001  the library's errors have no common base
        raise TritonModelException(
            f"model '{config['name']}': ONNX Runtime {ort.__version__} cannot load {path}: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    reason = " ".join(str(error).split())
    advice = memory_advice(error)
    if advice:
        return f"{reason}. {advice}"
    if "opset" in reason.lower() or "ir version" in reason.lower():
        return f"{reason} A newer onnxruntime in the model's environment, or an export with an older opset, mends it"
    if "protobuf parsing failed" in reason.lower() or "no graph was found" in reason.lower():
        return f"{reason} The file is truncated, or no ONNX file"
    return reason


def _optimization_level(ort: Any, config: Mapping[str, Any]) -> Any:
    level = (config.get("optimization", {}).get("graph") or {}).get("level", 0)
    levels = ort.GraphOptimizationLevel
    known = {_BASIC: levels.ORT_ENABLE_BASIC, _EXTENDED: levels.ORT_ENABLE_EXTENDED, _NONE: levels.ORT_DISABLE_ALL}
    return known.get(int(level), levels.ORT_ENABLE_ALL)


def _providers(ort: Any, config: Mapping[str, Any], values: Mapping[str, Any], kind: str, device_id: str) -> List[Any]:
    """The execution providers in order of preference, the CPU last."""
    names = [name.strip() for name in values.get("execution_providers", "").split(",") if name.strip()]
    settings: Dict[str, Dict[str, str]] = {}
    accelerators = config.get("optimization", {}).get("execution_accelerators") or {}
    for accelerator in accelerators.get(f"{'gpu' if kind == 'GPU' else 'cpu'}_execution_accelerator", ()):
        name = _ACCELERATORS.get(accelerator["name"].lower())
        if name is None:
            raise TritonModelException(
                f"model '{config['name']}': there is no execution accelerator '{accelerator['name']}' for ONNX files; "
                f"there are {', '.join(_ACCELERATORS)}"
            )
        names.append(name)
        settings[name] = dict(accelerator.get("parameters", {}))
    if kind == "GPU" and _CUDA not in names:
        names.append(_CUDA)
    available = ort.get_available_providers()
    for name in names:
        if name not in available:
            raise TritonModelException(
                f"model '{config['name']}': ONNX Runtime {ort.__version__} has no {name} here, it has "
                f"{', '.join(available)}: install the build of onnxruntime that has it into the model's environment"
                f"{', or set kind: KIND_CPU in instance_group' if name == _CUDA else ''}"
            )
        if kind == "GPU":
            settings.setdefault(name, {})["device_id"] = device_id
    return [(name, settings.get(name, {})) for name in dict.fromkeys(names) if name != _CPU] + [_CPU]


Output = Union["np.ndarray", Tensor]


class OnnxComputation:
    """Computes a model's outputs: strings become text, and large outputs are computed where they are sent from."""

    def __init__(self, session: Any, run_options: Any, signature: Signature, most_rows: int) -> None:
        self._session = session
        self._run_options = run_options
        self._scalars = {tensor.name for tensor in signature.inputs if tensor.shape == ()}
        self._converts = bool(self._scalars) or any(tensor.data_type == "TYPE_STRING" for tensor in signature.inputs)
        self._sized = SizedOutputs(signature, most_rows)

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> Mapping[str, Output]:
        if self._converts:
            inputs = {name: self._converted(name, array) for name, array in inputs.items()}
        if self._sized.can_be_large:
            large = self._sized.large(self._sized.rows(inputs), names)
            if large:
                return self._bound(inputs, names, large)
        return dict(zip(names, self._session.run(names, inputs, self._run_options)))

    def _converted(self, name: str, array: "np.ndarray") -> "np.ndarray":
        if array.dtype == np.object_:
            array = _as_text(name, array)
        return array.reshape(()) if name in self._scalars else array

    def _bound(
        self, inputs: "Dict[str, np.ndarray]", names: Sequence[str], large: "Dict[str, Tensor]"
    ) -> Mapping[str, Output]:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name in names:
            tensor = large.get(name)
            if tensor is None:
                binding.bind_output(name)
            else:
                array = tensor.as_numpy()
                binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.__array_interface__["data"][0])
        self._session.run_with_iobinding(binding, self._run_options)
        outputs: Dict[str, Output] = {}
        for name, value in zip(names, binding.get_outputs()):
            outputs[name] = large.get(name) or value.numpy()
        return outputs


def _as_text(name: str, array: "np.ndarray") -> "np.ndarray":
    """Strings as ONNX has them, from the bytes of a request."""
    text = np.empty(array.shape, np.object_)
    try:
        elements: List[str] = [element.decode("utf-8") for element in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise TritonModelException(f"input '{name}' has an element that is not UTF-8 text: {error.reason}") from None
    text.reshape(-1)[:] = elements
    return text


class TritonPythonModel:
    """A model of one ONNX file."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        document = config.as_dict()
        path = model_file(document)
        return complete_config(config, read_signature(document, path), path)

    def initialize(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        path = model_file(config)
        session, run_options = open_session(config, path, args["model_instance_kind"], args["model_instance_device_id"])
        signature = signature_of(config, session, path)
        check_config(config, signature, path)
        self._batches = config["max_batch_size"] > 0
        self._computation = OnnxComputation(session, run_options, signature, config["max_batch_size"])

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        return execute_batch(requests, self._computation, batches=self._batches, repeats=True)
