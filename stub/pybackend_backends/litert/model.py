"""The backend: completes the configuration of a model from its file, and answers requests with LiteRT."""

import json
from typing import Dict, List, Sequence

from pybackend_backends.litert.computation import Computation
from pybackend_backends.litert.interpreter import find_file, log_quantisation, open_file, read_signature
from pybackend_sdk.backend import check_config, complete_config, execute_batch
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse


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
