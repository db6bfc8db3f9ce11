"""The backend: loads a model with PyTorch, completes its configuration, and answers requests."""

import json
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

from pybackend_sdk.backend import check_config, execute_batch, model_tensors, require
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse

torch = require("torch", backend="pytorch", extra="torch")

# After torch is known to be there.
from pybackend_backends.pytorch.exported import ExportedProgram  # noqa: E402
from pybackend_backends.pytorch.files import SavedModel, bind_inputs, complete, find_files, load, signature_for  # noqa: E402
from pybackend_backends.pytorch.programs import LoadedProgram, ProgramRunner  # noqa: E402
from pybackend_backends.pytorch.settings import apply_to_process, device_of, read_settings  # noqa: E402
from pybackend_backends.pytorch.tensors import TorchTensors  # noqa: E402


class TritonPythonModel:
    """A model of TorchScript, ``torch.export``, AOTInductor, or of a Python class with a state dict."""

    _completed: "ClassVar[Optional[Tuple[SavedModel, LoadedProgram]]]" = None
    """Loaded to complete the configuration. The same process becomes an instance and need not load it again."""

    @classmethod
    def auto_complete_config(cls, config: ModelConfig) -> ModelConfig:
        document = config.as_dict()
        files = find_files(document)
        program = load(document, files, "cpu", read_settings(document))
        cls._completed = (files, program)
        return complete(config, files, program)

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the model, unless completing its configuration has done so."""
        config = json.loads(args["model_config"])
        settings = read_settings(config)
        apply_to_process(config)
        device = device_of(args["model_instance_kind"], args["model_instance_device_id"])
        program = self._program(config, device)
        arguments = bind_inputs(config, program)
        if isinstance(program, ExportedProgram):
            files = find_files(config)
            check_config(config, signature_for(config, program, program.description), files.path)
        outputs = {tensor["name"]: tensor["data_type"] for tensor in model_tensors(config, "output")}
        self._execution = ProgramRunner(program, arguments, outputs, device, settings.guard)
        self._batches = config["max_batch_size"] > 0
        self._form = TorchTensors(batches=self._batches)
        self._cleans_cache = settings.cleans_cache and device.startswith("cuda")

    def _program(self, config: Dict[str, Any], device: str) -> LoadedProgram:
        files = find_files(config)
        completed, type(self)._completed = type(self)._completed, None
        if completed is not None and completed[0] == files and device == "cpu":
            return completed[1]
        return load(config, files, device, read_settings(config))

    def execute(self, requests: Sequence[InferenceRequest]) -> List[InferenceResponse]:
        responses = execute_batch(requests, self._execution.run, batches=self._batches, form=self._form)
        if self._cleans_cache:
            torch.cuda.empty_cache()
        return responses

    def finalize(self) -> None:
        del self._execution
