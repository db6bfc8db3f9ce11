"""Arguments of the engine."""

from dataclasses import dataclass


@dataclass
class EngineArgs:
    """A few of them."""

    model: str = ""
    tokenizer: str | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_lora: bool = False
    disable_log_stats: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be from 0 to 1, got {self.gpu_memory_utilization}.")


@dataclass
class AsyncEngineArgs(EngineArgs):
    """Those of the asynchronous engine."""

    enable_log_requests: bool = False
