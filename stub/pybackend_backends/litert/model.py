"""The backend: completes the configuration of a model from its file, and answers requests with LiteRT."""

import json
from typing import Any, Dict, List, Mapping, Sequence, Union

import numpy as np

from pybackend_backends.litert.interpreter import (
    OpenFile,
    find_file,
    log_quantisation,
    open_file,
    read_signature,
    reason,
)
from pybackend_backends.output_memory import LARGE_BYTES
from pybackend_sdk.backend import Signature, check_config, complete_config, execute_batch
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor

Output = Union["np.ndarray", Tensor]


class Computation:
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
        """Compute the named outputs; arguments and result as of :data:`pybackend_sdk.backend.Run`."""
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
        view = np.asarray(self._interpreter.tensor(index)())  # a scalar comes as such
        if view.nbytes < LARGE_BYTES:
            array: np.ndarray = view.copy()
            return array
        output = Tensor.empty(name, view.shape, view.dtype)
        np.copyto(output.as_numpy(), view)
        return output


class TritonPythonModel:
    """A model of one file of LiteRT."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        """Fill in the tensors and the batching that the file states."""
        document = config.as_dict()
        path = find_file(document)
        return complete_config(config, read_signature(document, path, open_file(document, path, threads=1)), path)

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the file."""
        config = json.loads(args["model_config"])
        path = find_file(config)
        opened = open_file(config, path)
        signature = read_signature(config, path, opened)
        check_config(config, signature, path)
        log_quantisation(config, opened)
        self._batches = config["max_batch_size"] > 0
        self._computation = Computation(opened, signature)

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        """Compute the requests, together if the model batches."""
        return execute_batch(requests, self._computation, batches=self._batches)
