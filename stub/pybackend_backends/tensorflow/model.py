"""The backend: completes the configuration of a model from its SavedModel, and answers requests with TensorFlow."""

import json
from typing import Any, Dict, List, Mapping, Sequence

from pybackend_backends.tensorflow.saved_model import ServedSignature, find_directory, read_signature
from pybackend_backends.tensorflow.session import Computation, open_session, read_settings
from pybackend_sdk.backend import check_config, complete_config, execute_batch
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse


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
