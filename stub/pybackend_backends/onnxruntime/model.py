"""The backend: completes the configuration of a model from its file, and answers requests with ONNX Runtime."""

import json
from typing import Any, Dict, List, Mapping, Sequence, Union

import numpy as np

from pybackend_backends.onnxruntime.session import Instance, model_file, open_session, read_signature, signature_of
from pybackend_backends.output_memory import SizedOutputs
from pybackend_sdk.backend import Signature, check_config, complete_config, execute_batch
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor

Output = Union["np.ndarray", Tensor]


class Computation:
    """Computes a model's outputs: strings become text, and large outputs are computed where they are sent from."""

    def __init__(self, session: Any, run_options: Any, signature: Signature, most_rows: int) -> None:
        self._session = session
        self._run_options = run_options
        self._scalars = {tensor.name for tensor in signature.inputs if tensor.shape == ()}
        self._converts = bool(self._scalars) or any(tensor.data_type == "TYPE_STRING" for tensor in signature.inputs)
        self._sized = SizedOutputs(signature, most_rows)

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> Mapping[str, Output]:
        """Compute the named outputs; arguments and result as of :data:`pybackend_sdk.backend.Run`."""
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
        """Fill in the tensors and the batching that the file states."""
        document = config.as_dict()
        path = model_file(document)
        return complete_config(config, read_signature(document, path), path)

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the file."""
        config = json.loads(args["model_config"])
        path = model_file(config)
        session, run_options = open_session(
            config, path, Instance(args["model_instance_kind"], int(args["model_instance_device_id"]))
        )
        signature = signature_of(config, session, path)
        check_config(config, signature, path)
        self._batches = config["max_batch_size"] > 0
        self._computation = Computation(session, run_options, signature, config["max_batch_size"])

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        """Compute the requests, together if the model batches."""
        return execute_batch(requests, self._computation, batches=self._batches, repeats=True)
