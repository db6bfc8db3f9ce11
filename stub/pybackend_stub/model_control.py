"""Loads and unloads other models for a model: asks the host, and turns refusals into the SDK's exceptions."""

from typing import Any, Callable, Dict, List, Optional

from pybackend_sdk.error import TritonModelException, printable
from pybackend_stub.host_calls import HostCalls, HostRefusal, MessageTooLong
from pybackend_stub.tensor_io import OutputMemoryExhausted, OutputTail, OutputWriter
from pybackend_wire.messages import TensorPlace
from pybackend_wire.stub_messages import IsModelReady, LoadModel, Question, UnloadModel

_LOAD = "Failed to load model: "
_UNLOAD = "Failed to unload model: "
_CHECK = "Failed to check model readiness: "


class ModelControl:
    """Asks the host. The calling thread waits for the answer; other threads continue.

    Args:
        calls: sends the questions.
        writer: writes files to memory that the host can read.
        instance_name: for messages.
    """

    def __init__(self, calls: HostCalls, writer: OutputWriter, instance_name: str) -> None:
        self._calls = calls
        self._writer = writer
        self._instance_name = instance_name

    def load(self, model_name: str, config: str, files: "Optional[Dict[str, bytes]]") -> None:
        """Load or reload a model, and wait until it is ready.

        Raises:
            TritonModelException: the model cannot be loaded.
        """
        tail = OutputTail()
        places = self._write(files or {}, tail)
        try:
            self._ask(_LOAD, lambda number: LoadModel(number, model_name, config, places), tail)
        except MessageTooLong as error:  # nothing was sent
            self._writer.free(places)
            raise self._failure(_LOAD, f"the configuration, or the list of files, is too long: {error}") from None

    def unload(self, model_name: str, unload_dependents: bool) -> None:
        """Begin to unload a model.

        Raises:
            TritonModelException: the model cannot be unloaded.
        """
        self._ask(_UNLOAD, lambda number: UnloadModel(number, model_name, unload_dependents))

    def is_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a version of a model accepts requests, or any version for ``""``.

        Raises:
            TritonModelException: there is no such model.
        """
        return bool(self._ask(_CHECK, lambda number: IsModelReady(number, model_name, model_version)))

    def _write(self, files: "Dict[str, bytes]", tail: OutputTail) -> "List[TensorPlace]":
        places: List[TensorPlace] = []
        try:
            for path, content in files.items():
                places.append(self._writer.write_bytes(printable(path), content, tail))
        except OutputMemoryExhausted as exhausted:
            self._writer.free(places)
            raise self._failure(_LOAD, str(exhausted)) from None
        return places

    def _ask(self, what: str, make: "Callable[[int], Question]", tail: "Optional[OutputTail]" = None) -> Any:
        try:
            return self._calls.ask(make, tail)
        except HostRefusal as refusal:
            raise self._failure(what, refusal.message) from None

    def _failure(self, what: str, message: str) -> TritonModelException:
        return TritonModelException(
            f"{what}Failed to process the request for model '{self._instance_name}', message: {message}"
        )
