"""The base of receivers of the engine's numbers."""

from abc import ABC, abstractmethod


class StatLoggerBase(ABC):
    """A receiver."""

    @abstractmethod
    def __init__(self, vllm_config, engine_index=0): ...

    @abstractmethod
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...

    @abstractmethod
    def log_engine_initialized(self): ...
