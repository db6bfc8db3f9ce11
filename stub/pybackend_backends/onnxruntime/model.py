"""The backend: completes the configuration of a model from its file, and answers requests with ONNX Runtime."""

import json
from typing import Dict, List, Sequence

from pybackend_backends.onnxruntime.computation import Computation
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
