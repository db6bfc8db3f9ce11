"""Errors of the engine."""

from vllm.exceptions import VLLMServerError


class EngineGenerateError(VLLMServerError):
    """A request has failed."""


class EngineDeadError(VLLMServerError):
    """The engine's process has ended."""

    def __init__(self) -> None:
        super().__init__("EngineCore encountered an issue.")
