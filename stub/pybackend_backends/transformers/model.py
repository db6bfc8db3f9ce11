"""The backend: serves a directory of a Hugging Face model by its task."""

import json
from typing import Any, Dict, List, Optional, Sequence

from pybackend_sdk.backend import Form, check_config, complete_config, execute_batch, keep_freed_memory, require
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor

_BACKEND = "transformers"

torch = require("torch", backend=_BACKEND, extra=_BACKEND)
require("transformers", backend=_BACKEND, extra=_BACKEND)

# After the frameworks are known to be there.
from pybackend_backends.pytorch.settings import device_of  # noqa: E402
from pybackend_backends.text_requests import read_template, require_decoupled  # noqa: E402
from pybackend_backends.transformers.checkpoints import Checkpoint, open_checkpoint, read_settings, use_threads  # noqa: E402
from pybackend_backends.transformers.generation import GENERATING, Generator, begin_text  # noqa: E402
from pybackend_backends.transformers.tasks import WORKERS, signature_of  # noqa: E402


class TritonPythonModel:
    """A model of a Hugging Face directory."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        """Fill in the inputs and outputs of the task. No weights are loaded."""
        document = config.as_dict()
        checkpoint = open_checkpoint(document)
        if checkpoint.task in GENERATING:
            config.set_model_transaction_policy({"decoupled": True})
        return complete_config(config, signature_of(checkpoint), _described(checkpoint))

    def initialize(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        settings = read_settings(config)
        checkpoint = open_checkpoint(config)
        check_config(config, signature_of(checkpoint), _described(checkpoint))
        use_threads(config)
        keep_freed_memory()
        device = device_of(args["model_instance_kind"], args["model_instance_device_id"])
        self._batches = config["max_batch_size"] > 0
        self._max_tokens = settings.max_tokens
        self._generator: Optional[Generator] = None
        if checkpoint.task in GENERATING:
            require_decoupled(config)
            self._generator = Generator(checkpoint, settings, device, read_template(config, settings.chat_template))
        else:
            self._worker = WORKERS[checkpoint.task](checkpoint, settings, device)

    def execute(self, requests: Sequence[InferenceRequest]) -> Optional[List[InferenceResponse]]:
        if self._generator is None:
            with torch.inference_mode():
                return execute_batch(requests, self._run, batches=self._batches, form=_FORM, repeats=True)
        for request in requests:
            begin_text(request, self._generator, self._max_tokens)
        return None

    def finalize(self) -> None:
        if self._generator is not None:
            self._generator.end()

    def _run(self, inputs: Dict[str, Any], names: Sequence[str]) -> Dict[str, Any]:
        outputs: Dict[str, Any] = self._worker.run(inputs)
        return outputs


def _described(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.directory}/config.json"


class _Elements(Form):
    """Inputs are lists of texts, encoded images as bytes, or truths; outputs are arrays."""

    def read(self, tensor: Tensor) -> List[Any]:
        elements: List[Any] = tensor.as_numpy().ravel().tolist()
        if tensor.name() == "image" or not elements or not isinstance(elements[0], bytes):
            return elements
        try:
            return [element.decode("utf-8") for element in elements]
        except UnicodeDecodeError:
            raise TritonModelException(f"Input '{tensor.name()}' has an element that is not UTF-8.") from None

    def join(self, tensors: Sequence[Tensor]) -> List[Any]:
        return [element for tensor in tensors for element in self.read(tensor)]

    def write(self, name: str, value: Any) -> Tensor:
        return Tensor(name, value)


_FORM = _Elements()
