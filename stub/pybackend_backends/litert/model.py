"""The backend: completes the configuration of a model from its file, and answers requests with LiteRT."""

import json
import os
from importlib.util import find_spec
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from pybackend_backends.output_memory import sent_copy
from pybackend_sdk.backend import (
    Signature,
    TensorInfo,
    check_config,
    complete_config,
    execute_batch,
    model_path,
    model_tensors,
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
from pybackend_sdk.tensor import Tensor
from pybackend_wire.dtypes import BY_NUMPY

BACKEND = EXTRA = "litert"
FILES = ("model.tflite",)
PARAMETERS = {"NUM_THREADS": whole_number(at_least=1), "SIGNATURE": text()}

_TRIAL_ROWS = 3
"""A batch size that models seldom have as a fixed dimension."""

_ADVICE = {
    "flatbuffer": "The file is truncated, or no file of LiteRT",
    "size 0": "The file is empty",
    "flex": "Write the model with TFLITE_BUILTINS only, or serve the SavedModel that it was made of",
    "custom op": "Write the model with TFLITE_BUILTINS only, or serve the SavedModel that it was made of",
    "out of range": "A newer ai-edge-litert in the model's environment mends it",
    "builtin opcode": "A newer ai-edge-litert in the model's environment mends it",
}

_MISSING = ("flex", "custom op")


class OpenFile(NamedTuple):
    """An open model, with the library's description of each input and output by name.

    The runner is that of the chosen signature where the file has several, else None.
    """

    interpreter: Any
    runner: Any
    inputs: Dict[str, Mapping[str, Any]]
    outputs: Dict[str, Mapping[str, Any]]


def open_file(config: Mapping[str, Any], path: str, *, threads: Optional[int] = None) -> OpenFile:
    """Load a model's file, for as many threads as given, as ``NUM_THREADS`` says, or as the instance's share of the cores is."""
    values = read_parameters(config, PARAMETERS)
    threads = threads or values.get("NUM_THREADS") or threads_per_instance(config)
    interpreter_class = _interpreter_class()
    try:
        interpreter = interpreter_class(path, num_threads=threads)
    except Exception as error:  # noqa: BLE001  the library's errors have no common base
        raise _refused(config, path, error) from None
    try:
        interpreter.allocate_tensors()
    except RuntimeError as error:
        # Sizes that the file leaves open are 1 here, which a network need not allow. Missing operations show, too.
        if any(words in str(error).lower() for words in _MISSING):
            raise _refused(config, path, error) from None
    signatures: List[str] = list(interpreter.get_signature_list())
    wanted = values.get("SIGNATURE")
    if wanted is not None and wanted not in signatures:
        raise TritonModelException(
            f"model '{config['name']}': parameters SIGNATURE is '{wanted}', and {os.path.basename(path)} has "
            f"{'the signatures ' + ', '.join(signatures) if signatures else 'no signatures'}"
        )
    if len(signatures) > 1 and wanted is None and "serving_default" not in signatures:
        raise TritonModelException(
            f"model '{config['name']}': {os.path.basename(path)} has the signatures {', '.join(signatures)}: choose one with "
            "parameters SIGNATURE"
        )
    if not signatures:
        inputs = {each["name"]: each for each in interpreter.get_input_details()}
        outputs = {each["name"]: each for each in interpreter.get_output_details()}
        return OpenFile(interpreter, None, inputs, outputs)
    runner = interpreter.get_signature_runner(wanted or ("serving_default" if len(signatures) > 1 else signatures[0]))
    several = runner if len(signatures) > 1 else None
    return OpenFile(interpreter, several, runner.get_input_details(), runner.get_output_details())


def read_signature(config: Mapping[str, Any], path: str, opened: OpenFile) -> Signature:
    """The inputs and outputs of an open model.

    If the configuration batches and the file fixes the batch size, the inputs are made larger for a trial.
    """
    inputs = [_tensor_info(config, path, "input", name, each) for name, each in opened.inputs.items()]
    outputs = [_tensor_info(config, path, "output", name, each) for name, each in opened.outputs.items()]
    unknown = {tensor["name"] for tensor in model_tensors(config, "output") if tensor.get("dims")}
    outputs = [
        tensor._replace(shape=None) if tensor.shape == () and tensor.name in unknown else tensor for tensor in outputs
    ]
    batches = config.get("max_batch_size", 0) > 0
    fixed = opened.runner is None and any(
        tensor.shape and tensor.shape[0] != VARIABLE for tensor in (*inputs, *outputs)
    )
    if batches and fixed:
        return _resized(config, path, opened, inputs, outputs)
    return Signature(inputs, outputs)


def log_quantisation(config: Mapping[str, Any], opened: OpenFile) -> None:
    """Tell what the integers of quantised tensors mean: clients send and receive them as they are."""
    for kind, details in (("input", opened.inputs), ("output", opened.outputs)):
        for name, each in details.items():
            scale, zero = each["quantization"]
            if scale:
                Logger.log_info(
                    f"model '{config['name']}': {kind} '{name}' is quantised: its values mean {scale:.9g} * (value - {zero})"
                )


def reason(error: Exception) -> str:
    """The library's message on one line."""
    return " ".join(str(error).split())


def _interpreter_class() -> Any:
    # TensorFlow has the same interpreter, and takes seconds to import: it is the second choice.
    if find_spec("ai_edge_litert") is None and find_spec("tensorflow") is not None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        return require("tensorflow", backend=BACKEND, extra=EXTRA).lite.Interpreter
    return require("ai_edge_litert.interpreter", backend=BACKEND, extra=EXTRA).Interpreter


def _refused(config: Mapping[str, Any], path: str, error: Exception) -> TritonModelException:
    why = reason(error)
    advice = next((text for words, text in _ADVICE.items() if words in why.lower()), "")
    end = "" if why.endswith((".", "!")) else "."
    return TritonModelException(
        f"model '{config['name']}': LiteRT cannot load {path}: {f'{why}{end} {advice}'.strip()}"
    )


def _tensor_info(config: Mapping[str, Any], path: str, kind: str, name: str, details: Mapping[str, Any]) -> TensorInfo:
    dtype = np.dtype(details["dtype"])
    if dtype.kind in "SO":
        data_type = "TYPE_STRING"
    elif dtype in BY_NUMPY:
        data_type = BY_NUMPY[dtype].config_name
    else:
        raise TritonModelException(
            f"model '{config['name']}': {kind} '{name}' of {os.path.basename(path)} is of type {dtype}, which cannot be sent"
        )
    return TensorInfo(name, data_type, _shape(details))


def _shape(details: Mapping[str, Any]) -> Tuple[int, ...]:
    stated = details["shape_signature"]
    return tuple(int(size) for size in (stated if len(stated) else details["shape"]))


def _resized(
    config: Mapping[str, Any], path: str, opened: OpenFile, inputs: List[TensorInfo], outputs: List[TensorInfo]
) -> Signature:
    """The signature of a model whose fixed batch size is replaced by one of any size."""
    file, trial = os.path.basename(path), opened.interpreter
    try:
        for tensor in inputs:
            sizes = [max(1, size) for size in (tensor.shape or ())[1:]]
            trial.resize_tensor_input(opened.inputs[tensor.name]["index"], [_TRIAL_ROWS, *sizes])
        trial.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise TritonModelException(
            f"model '{config['name']}': {file} does not take batches of any size, as max_batch_size: "
            f"{config['max_batch_size']} asks for: {reason(error)}. Write max_batch_size: 0 and all dims, or export the model "
            "with a dynamic batch dimension"
        ) from None
    shapes = {each["index"]: tuple(each["shape"]) for each in trial.get_output_details()}
    found = []
    for tensor in outputs:
        shape = shapes.get(opened.outputs[tensor.name]["index"], ())
        is_batch = bool(tensor.shape) and shape[:1] == (_TRIAL_ROWS,)
        found.append(tensor._replace(shape=(VARIABLE, *(tensor.shape or ())[1:])) if is_batch else tensor)
    return Signature([tensor._replace(shape=(VARIABLE, *(tensor.shape or ())[1:])) for tensor in inputs], found)


Output = Union["np.ndarray", Tensor]


class LiteRtComputation:
    """Computes a model's outputs.

    The interpreter's tensors get the sizes of a request, and large outputs are copied to where they are sent from.
    """

    def __init__(self, opened: OpenFile, signature: Signature) -> None:
        self._interpreter = opened.interpreter
        self._runner = opened.runner
        self._inputs = {name: each["index"] for name, each in opened.inputs.items()}
        self._outputs = {name: each["index"] for name, each in opened.outputs.items()}
        self._scalars = {tensor.name for tensor in signature.inputs if tensor.shape == ()}
        self._texts = {tensor.name for tensor in signature.outputs if tensor.data_type == "TYPE_STRING"}
        self._shapes: Any = None
        """Shapes of the inputs that memory is allocated for, None if there is none."""

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> Mapping[str, Output]:
        if self._scalars:
            inputs = {name: array.reshape(()) if name in self._scalars else array for name, array in inputs.items()}
        try:
            if self._runner is not None:
                return {name: np.asarray(value) for name, value in self._runner(**inputs).items()}
            self._resize(inputs)
            for name, array in inputs.items():
                self._interpreter.set_tensor(self._inputs[name], array)
            self._interpreter.invoke()
            return {name: self._copied(name) for name in names}
        except (RuntimeError, ValueError) as error:
            self._shapes = None
            raise TritonModelException(f"LiteRT cannot compute this request: {reason(error)}") from None

    def _resize(self, inputs: "Dict[str, np.ndarray]") -> None:
        shapes = {name: array.shape for name, array in inputs.items()}
        if shapes == self._shapes:
            return
        self._shapes = None
        for name, shape in shapes.items():
            self._interpreter.resize_tensor_input(self._inputs[name], shape)
        self._interpreter.allocate_tensors()
        self._shapes = shapes

    def _copied(self, name: str) -> Output:
        """An output, whose memory in the interpreter the next run overwrites."""
        index = self._outputs[name]
        if name in self._texts:
            text: np.ndarray = self._interpreter.get_tensor(index)
            return text
        # While a view exists, the interpreter refuses to run: it must not outlive this method.
        return sent_copy(name, np.asarray(self._interpreter.tensor(index)()))  # a scalar comes as such


class TritonPythonModel:
    """A model of one file of LiteRT."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        document = config.as_dict()
        path = model_path(document, FILES)
        return complete_config(config, read_signature(document, path, open_file(document, path, threads=1)), path)

    def initialize(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        path = model_path(config, FILES)
        opened = open_file(config, path)
        signature = read_signature(config, path, opened)
        check_config(config, signature, path)
        log_quantisation(config, opened)
        self._batches = config["max_batch_size"] > 0
        self._computation = LiteRtComputation(opened, signature)

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        return execute_batch(requests, self._computation, batches=self._batches)
