"""The backend: completes the configuration of a model from its file, and answers requests with OpenVINO."""

import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from pybackend_backends.openvino.model_file import (
    compile_model,
    find_file,
    new_core,
    read_model,
    read_settings,
    reason,
    runtime,
)
from pybackend_backends.output_memory import SizedOutputs, sent_copy
from pybackend_sdk.backend import Signature, check_config, complete_config, execute_batch, memory_advice
from pybackend_sdk.backend.batching import Run
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor

_MOST_TEXT_BYTES = 256 * 1024 * 1024

Output = Union["np.ndarray", Tensor]


class OpenVinoComputation:
    """Computes a model's outputs.

    A compiled model that has found no memory once fails for all inputs that follow: it is compiled again.

    Inputs are read where they arrived, and large outputs are computed where they are sent from.
    """

    def __init__(
        self,
        compiled: Any,
        signature: Signature,
        output_places: Mapping[str, int],
        most_rows: int,
        compile_again: Callable[[], Any],
    ) -> None:
        self._ov = runtime()
        self._compiled = compiled
        self._compile_again = compile_again
        self._request = compiled.create_infer_request()
        self._binding_request: Optional[Any] = None
        self._input_places = {tensor.name: place for place, tensor in enumerate(signature.inputs)}
        self._output_places = output_places
        self._scalars = {tensor.name for tensor in signature.inputs if tensor.shape == ()}
        self._texts = {tensor.name for tensor in signature.outputs if tensor.data_type == "TYPE_STRING"}
        self._sized = SizedOutputs(signature, most_rows)

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> Mapping[str, Output]:
        rows = self._sized.rows(inputs)
        large = self._sized.large(rows, names) if self._sized.can_be_large else {}
        if self._compiled is None:
            self._compiled = self._compile_again()
            self._request = self._compiled.create_infer_request()
        try:
            if large:
                return self._bound(inputs, names, large, rows)
            self._infer(self._request, inputs)
        except RuntimeError as error:
            if memory_advice(error):
                self._compiled = self._request = self._binding_request = None
            raise TritonModelException(f"OpenVINO cannot compute this request: {reason(error)}") from None
        return {name: self._copied(self._request, name) for name in names}

    def _bound(
        self, inputs: "Dict[str, np.ndarray]", names: Sequence[str], large: "Dict[str, Tensor]", rows: int
    ) -> Mapping[str, Output]:
        # A request of OpenVINO keeps the memory that it was once given, so it gets new memory for the same outputs each
        # time.
        if self._binding_request is None:
            self._binding_request = self._compiled.create_infer_request()
        request, arrays = self._binding_request, self._sized.arrays(rows, large)
        for name, array in arrays.items():
            request.set_output_tensor(self._output_places[name], self._ov.Tensor(array, shared_memory=True))
        self._infer(request, inputs)
        for name in large:
            shape = tuple(request.get_output_tensor(self._output_places[name]).shape)
            if shape != arrays[name].shape:
                raise TritonModelException(
                    f"output '{name}' has the shape {list(shape)} for a batch of {rows}: its first dimension is not the batch's"
                )
        return {name: large.get(name) or self._copied(request, name) for name in names}

    def _infer(self, request: Any, inputs: "Dict[str, np.ndarray]") -> None:
        for name, array in inputs.items():
            request.set_input_tensor(self._input_places[name], self._tensor(name, array))
        request.infer()

    def _tensor(self, name: str, array: "np.ndarray") -> Any:
        if array.dtype == np.object_:
            return self._text(name, array)
        if name in self._scalars:
            array = array.reshape(())
        return self._ov.Tensor(array, shared_memory=array.flags.writeable)

    def _text(self, name: str, array: "np.ndarray") -> Any:
        """A tensor of strings. The library's interface takes them padded to the longest one."""
        longest = max(map(len, array.flat), default=0)
        if longest * array.size > _MOST_TEXT_BYTES:
            raise TritonModelException(
                f"input '{name}' has {array.size} strings, the longest of {longest} bytes: padded to that length they are more "
                f"than the {_MOST_TEXT_BYTES >> 20} MiB that are allowed. Send fewer at once"
            )
        if any(element.endswith(b"\0") for element in array.flat):
            raise TritonModelException(
                f"input '{name}' has an element that ends with a zero byte, which OpenVINO would drop"
            )
        tensor = self._ov.Tensor(self._ov.Type.string, self._ov.Shape(list(array.shape)))
        tensor.bytes_data = array.astype(np.bytes_)
        return tensor

    def _copied(self, request: Any, name: str) -> Output:
        """An output whose memory is the request's, which its next run overwrites."""
        tensor = request.get_output_tensor(self._output_places[name])
        if name in self._texts:
            text: np.ndarray = tensor.bytes_data
            return text
        return sent_copy(name, tensor.data)


class FixedBatch:
    """Computes batches up to the size that a model's file fixes: smaller ones are filled up if it pads, else refused."""

    def __init__(self, run: Run, size: int, *, pads: bool) -> None:
        self._run = run
        self._size = size
        self._pads = pads

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> "Mapping[str, Any]":
        rows = len(next(iter(inputs.values())))
        if rows == self._size:
            return self._run(inputs, names)
        if not self._pads:
            raise TritonModelException(
                f"the batch has {rows} rows, and the model's file fixes them to {self._size}: send as many, or let the server "
                'fill up smaller batches, with parameters ENABLE_BATCH_PADDING "YES"'
            )
        outputs = self._run({name: self._padded(array) for name, array in inputs.items()}, names)
        return {name: _array(output)[:rows] for name, output in outputs.items()}

    def _padded(self, array: "np.ndarray") -> "np.ndarray":
        filler = b"" if array.dtype == np.object_ else 0
        padded: np.ndarray = np.full((self._size, *array.shape[1:]), filler, array.dtype)
        padded[: len(array)] = array
        return padded


def _array(output: Any) -> Any:
    return output.as_numpy() if isinstance(output, Tensor) else output


class TritonPythonModel:
    """A model of one file that OpenVINO reads."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        document = config.as_dict()
        path, settings = find_file(document), read_settings(document)
        return complete_config(
            config, read_model(document, new_core(document, settings), path, settings).signature, path
        )

    def initialize(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        path, settings = find_file(config), read_settings(config)
        core = new_core(config, settings)
        served = read_model(config, core, path, settings)
        check_config(config, served.signature, path)
        compiled = compile_model(config, core, served.model, settings)

        def compile_again() -> Any:
            return compile_model(config, core, read_model(config, core, path, settings).model, settings)

        self._batches = config["max_batch_size"] > 0
        self._run: Run = OpenVinoComputation(
            compiled, served.signature, served.output_places, config["max_batch_size"], compile_again
        )
        if served.fixed_batch is not None:
            self._run = FixedBatch(self._run, served.fixed_batch, pads=settings.get("ENABLE_BATCH_PADDING", False))

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        return execute_batch(requests, self._run, batches=self._batches)
