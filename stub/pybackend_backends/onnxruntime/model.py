"""The backend: completes the configuration of a model from its file, and answers requests with ONNX Runtime."""

import json
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from pybackend_backends.onnxruntime.session import Instance, model_file, open_session, read_signature, signature_of
from pybackend_sdk.backend import check_config, complete_config, execute_batch
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse


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
        instance = Instance(args["model_instance_kind"], int(args["model_instance_device_id"]))
        self._session = open_session(config, path, instance)
        signature = signature_of(config, self._session, path)
        check_config(config, signature, path)
        self._batches = config["max_batch_size"] > 0
        self._scalars = {tensor.name for tensor in signature.inputs if tensor.shape == ()}

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        """Run the requests, together if the model batches."""
        return execute_batch(requests, self._run, batches=self._batches)

    def _run(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> "Mapping[str, np.ndarray]":
        for name, array in inputs.items():
            if array.dtype == np.object_:
                inputs[name] = _as_text(array)
            elif name in self._scalars:
                inputs[name] = array.reshape(())
        outputs: List[Any] = self._session.run(names, inputs)
        return dict(zip(names, outputs))

    def finalize(self) -> None:
        """Release the file's weights."""
        del self._session


def _as_text(array: "np.ndarray") -> "np.ndarray":
    """Strings as ONNX has them, from the bytes of a request."""
    decoded = np.empty(array.shape, np.object_)
    decoded.reshape(-1)[:] = [element.decode("utf-8") for element in array.reshape(-1).tolist()]
    return decoded
