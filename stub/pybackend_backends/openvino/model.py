"""The backend: completes the configuration of a model from its file, and answers requests with OpenVINO."""

import json
from typing import Any, Dict, List, Sequence

from pybackend_backends.openvino.computation import Computation, FixedBatch
from pybackend_backends.openvino.model_file import find_file, read_model
from pybackend_backends.openvino.settings import compile_model, new_core, read_settings
from pybackend_sdk.backend import check_config, complete_config, execute_batch
from pybackend_sdk.backend.batching import Run
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse


class TritonPythonModel:
    """A model of one file that OpenVINO reads."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        """Fill in the tensors and the batching that the file states."""
        document = config.as_dict()
        path, settings = find_file(document), read_settings(document)
        return complete_config(
            config, read_model(document, new_core(document, settings), path, settings).signature, path
        )

    def initialize(self, args: Dict[str, str]) -> None:
        """Read and compile the file."""
        config = json.loads(args["model_config"])
        path, settings = find_file(config), read_settings(config)
        core = new_core(config, settings)
        served = read_model(config, core, path, settings)
        check_config(config, served.signature, path)
        device = f"GPU.{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "CPU"
        compiled = compile_model(config, core, served.model, settings, device)

        def compile_again() -> Any:
            return compile_model(config, core, read_model(config, core, path, settings).model, settings, device)

        self._batches = config["max_batch_size"] > 0
        self._run: Run = Computation(
            compiled, served.signature, served.output_places, config["max_batch_size"], compile_again
        )
        if served.fixed_batch is not None:
            self._run = FixedBatch(self._run, served.fixed_batch, pads=settings.pads)

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        """Compute the requests, together if the model batches."""
        return execute_batch(requests, self._run, batches=self._batches)
