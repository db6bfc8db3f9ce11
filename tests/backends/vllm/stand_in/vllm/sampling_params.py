"""Parameters of sampling."""

from dataclasses import dataclass
from enum import Enum

import msgspec

from vllm.exceptions import VLLMValidationError


@dataclass
class StructuredOutputsParams:
    """Constraints on the text."""

    json: str | dict | None = None
    regex: str | None = None
    choice: list[str] | None = None


class RequestOutputKind(Enum):
    """Which pieces of text the engine reports."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, dict=True):
    """A few of them."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0.0:
            raise VLLMValidationError(f"temperature must be non-negative, got {self.temperature}.")
