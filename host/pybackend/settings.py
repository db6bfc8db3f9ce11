"""Everything an operator can choose, read once from the command line and handed to those who need it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.observability.logging import LogSettings

DEFAULT_MAX_INPUT_SIZE_BYTES = 64 * 1024 * 1024


def half_of_memory_bytes() -> int:
    """Half of the machine's memory: what tensors of one model may take unless somebody says otherwise."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@dataclass(frozen=True)
class HttpSettings:
    """The inference endpoint and the metrics endpoint.

    Attributes:
        enabled: False serves no HTTP at all, only metrics.
        address: address to bind.
        port: port to bind; 0 takes a free one.
        max_input_size_bytes: bound of JSON, raw and decompressed bodies.
        metrics_enabled: False serves no metrics.
        metrics_address: address of the metrics port.
        metrics_port: port for ``/metrics``; 0 takes a free one.
    """

    enabled: bool = True
    address: str = "0.0.0.0"  # noqa: S104  the reference's default, which containers rely on
    port: int = 8000
    max_input_size_bytes: int = DEFAULT_MAX_INPUT_SIZE_BYTES
    metrics_enabled: bool = True
    metrics_address: str = "0.0.0.0"  # noqa: S104  likewise
    metrics_port: int = 8002


@dataclass(frozen=True)
class Settings:
    """The settings of one server.

    Attributes:
        repositories: directories of models.
        server_id: name in the server's metadata.
        auto_complete: models may complete their configuration.
        exit_on_error: a model that fails to load at start ends the server.
        strict_readiness: the server is ready only if every model is.
        model_load_count: models that load at the same time.
        model_memory_limit_bytes: most input memory per model, and most output memory per instance.
        exit_timeout_s: how long requests under way and ``finalize`` may take when the server stops.
        http: endpoints.
        log: which lines are written.
    """

    repositories: tuple[Path, ...]
    server_id: str = "triton"
    auto_complete: bool = True
    exit_on_error: bool = True
    strict_readiness: bool = True
    model_load_count: int = 4
    model_memory_limit_bytes: int = field(default_factory=half_of_memory_bytes)
    exit_timeout_s: float = 30
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
