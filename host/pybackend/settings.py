"""Everything an operator can choose, read once from the command line and handed to those who need it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pybackend.observability.logging import LogSettings

DEFAULT_MAX_INPUT_SIZE_BYTES = 64 * 1024 * 1024

DEFAULT_BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")
"""Where the reference's containers keep their backends."""

DEFAULT_DEBUG_PORT = 5678
"""What editors suggest."""


class ModelControlMode(StrEnum):
    """Who decides which models are loaded."""

    NONE = "none"
    """The repository: all of its models are loaded at start, and stay."""
    EXPLICIT = "explicit"
    """Whoever asks: by ``--load-model`` for the start, by requests and by models afterwards."""


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
class CacheSettings:
    """The response cache.

    Attributes:
        kind: ``local`` or ``redis``.
        options: its settings, checked.
    """

    kind: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class DebugSettings:
    """Models that run under a debugger.

    Attributes:
        models: their names.
        port: where the first of their processes listens, each further one at the next; 0 takes free ones.
        waits: a process imports its model only when a debugger has attached.
    """

    models: tuple[str, ...] = ()
    port: int = DEFAULT_DEBUG_PORT
    waits: bool = False


@dataclass(frozen=True)
class EnvironmentSettings:
    """The environments that models name.

    Attributes:
        cache_directory: where archives are unpacked, None for the usual place.
        cache_limit_bytes: unused ones are removed when all together are larger, None for never.
        pack_at_load: lists of packages are packed when a model that names one is loaded.
    """

    cache_directory: Path | None = None
    cache_limit_bytes: int | None = None
    pack_at_load: bool = False


@dataclass(frozen=True)
class SandboxSettings:
    """How far models are kept from what is not theirs.

    Attributes:
        level: of models that name none: ``off``, ``standard`` or ``strict``.
        floor: no model runs at a lower one, or widens it.
        required: a model is not loaded if a layer is not in force.
    """

    level: str = "standard"
    floor: str = "off"
    required: bool = False


@dataclass(frozen=True)
class Settings:
    """The settings of one server.

    Attributes:
        repositories: directories of models.
        model_control: who decides which models are loaded.
        startup_models: names of the models to load at start, None for all.
        backend_directory: holds backends that are written in Python, if it exists.
        server_id: name in the server's metadata.
        auto_complete: models may complete their configuration.
        exit_on_error: a model that fails to load at start ends the server.
        strict_readiness: the server is ready only if every model is.
        model_load_count: models that load at the same time.
        zygotes: processes of models may be forked from one that has imported what they need.
        model_memory_limit_bytes: most input memory per model, and most output memory per instance.
        exit_timeout_s: how long requests under way and ``finalize`` may take when the server stops.
        http: endpoints.
        log: which lines are written.
        debug: models under a debugger.
        cache: where responses are kept, None for nowhere.
        host_policies: cores of the processes of instances, by the policy's name.
        max_queued_bytes: bound of the bytes of requests that wait or are executed, None for none.
        resource_limits: how much there is of resources, by name and device; None if instances need not hold any.
        environments: the environments that models name.
        sandbox: how far models are kept from what is not theirs.
    """

    repositories: tuple[Path, ...]
    model_control: ModelControlMode = ModelControlMode.NONE
    startup_models: tuple[str, ...] | None = None
    backend_directory: Path = DEFAULT_BACKEND_DIRECTORY
    server_id: str = "triton"
    auto_complete: bool = True
    exit_on_error: bool = True
    strict_readiness: bool = True
    model_load_count: int = 4
    zygotes: bool = True
    model_memory_limit_bytes: int = field(default_factory=half_of_memory_bytes)
    exit_timeout_s: float = 30
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    debug: DebugSettings = DebugSettings()
    cache: CacheSettings | None = None
    host_policies: Mapping[str, frozenset[int]] = field(default_factory=dict)
    max_queued_bytes: int | None = None
    resource_limits: Mapping[tuple[str, int | None], int] | None = None
    environments: EnvironmentSettings = EnvironmentSettings()
    sandbox: SandboxSettings = SandboxSettings()
