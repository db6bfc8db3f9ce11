"""Loading and unloading other models, for a model: questions to the host, and their refusals as the SDK's exceptions."""

from typing import Any, Dict, List, Optional

from pybackend_sdk.error import TritonModelException, printable
from pybackend_stub.host_calls import HostCalls, HostRefusal, MessageTooLong
from pybackend_stub.tensor_io import OutputMemoryExhausted, OutputTail, OutputWriter, Place
from pybackend_wire.messages import StubMessage

_LOAD = "Failed to load model: "
_UNLOAD = "Failed to unload model: "
_CHECK = "Failed to check model readiness: "


class ModelControl:
    """Asks the host. The calling thread waits for the answer; all others go on.

    Args:
        calls: carries the questions.
        writer: puts files where the host can read them.
        instance_name: for messages.
    """

    def __init__(self, calls: HostCalls, writer: OutputWriter, instance_name: str) -> None:
        self._calls = calls
        self._writer = writer
        self._instance_name = instance_name

    def load(self, model_name: str, config: str, files: "Optional[Dict[str, bytes]]") -> None:
        """Load or reload a model, and wait until it is ready.

        Raises:
            TritonModelException: it cannot be loaded.
        """
        tail = OutputTail()
        places = self._write(files or {}, tail)
        try:
            self._ask(_LOAD, StubMessage.LOAD_MODEL, model_name, config, places, tail=tail)
        except MessageTooLong as error:  # nothing was sent
            self._writer.free(places)
            raise self._failure(_LOAD, f"the configuration, or the list of files, is too long: {error}") from None

    def unload(self, model_name: str, unload_dependents: bool) -> None:
        """Begin to unload a model.

        Raises:
            TritonModelException: it cannot be unloaded.
        """
        self._ask(_UNLOAD, StubMessage.UNLOAD_MODEL, model_name, unload_dependents)

    def is_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a version of a model takes requests, or any for ``""``.

        Raises:
            TritonModelException: there is no such model.
        """
        return bool(self._ask(_CHECK, StubMessage.IS_MODEL_READY, model_name, model_version))

    def _write(self, files: "Dict[str, bytes]", tail: OutputTail) -> "List[Place]":
        places: List[Place] = []
        try:
            for path, content in files.items():
                places.append(self._writer.write_bytes(printable(path), content, tail))
        except OutputMemoryExhausted as exhausted:
            self._writer.free(places)
            raise self._failure(_LOAD, str(exhausted)) from None
        return places

    def _ask(self, what: str, kind: StubMessage, *fields: Any, tail: "Optional[OutputTail]" = None) -> Any:
        try:
            return self._calls.ask(kind, *fields, tail=tail)
        except HostRefusal as refusal:
            raise self._failure(what, refusal.message) from None

    def _failure(self, what: str, message: str) -> TritonModelException:
        return TritonModelException(
            f"{what}Failed to process the request for model '{self._instance_name}', message: {message}"
        )
