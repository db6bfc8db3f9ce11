"""The options of a server in the caller's process, by the reference's names, and their flags of ``pybackend serve``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real
from os import PathLike
from reprlib import repr as brief
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from pybackend.in_process.errors import InvalidArgumentError, WrongTypeError
from pybackend.observability.log_lines import LogFormat
from pybackend.settings import ModelControlMode, Settings

__all__ = [
    "InstanceGroupKind", "LogFormat", "ModelControlMode", "ModelLoadDeviceLimit", "Options", "RateLimitMode", "RateLimiterResource",
    "settings_of",
]  # fmt: skip

Place = str | PathLike[str]


class RateLimitMode(StrEnum):
    """Whether instances execute only while they hold the resources that they need."""

    OFF = "off"
    EXEC_COUNT = "execution_count"


class RateLimiterResource(NamedTuple):
    """How much of a resource there is, on each device, or on one."""

    name: str
    count: int  # type: ignore[assignment]  # a method of tuples
    device: int | None = None


class InstanceGroupKind(StrEnum):
    """Where the instances of a group run."""

    AUTO = "KIND_AUTO"
    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    MODEL = "KIND_MODEL"


class ModelLoadDeviceLimit(NamedTuple):
    """The part of a device's memory up to which models are loaded."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass
class Options:
    """The options of a server. The names and defaults are the reference's, as far as they mean something here."""

    model_repository: Place | Sequence[Place] = ()  # directories of models, or URLs of places in cloud storage
    server_id: str = "triton"
    model_control_mode: ModelControlMode | str = ModelControlMode.NONE
    startup_models: Sequence[str] = ()  # with explicit control, the models to load at start
    strict_model_config: bool = False  # models cannot complete their configurations
    strict_readiness: bool = True
    exit_on_error: bool = True  # a model that fails to load at start is an error of ``start``
    exit_timeout: int = 30  # seconds
    cache_config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # {"local": {"size": 1048576}}
    rate_limiter_mode: RateLimitMode | str = RateLimitMode.OFF
    rate_limiter_resources: Sequence[RateLimiterResource | tuple[Any, ...]] = ()
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    log_file: Place | None = None
    log_info: bool = False  # without any of these, lines go where Python's logging sends those of ``pybackend``
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat | str = LogFormat.DEFAULT
    log_verbose: bool | int = False
    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000  # milliseconds
    backend_directory: Place | None = None
    backend_configuration: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    host_policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics_configuration: Mapping[str, Any] = field(default_factory=dict)
    # Without effect here, as their flags: there is a warning.
    pinned_memory_pool_size: int | None = None
    cuda_memory_pool_sizes: Mapping[int, int] = field(default_factory=dict)
    cache_directory: Place | None = None
    min_supported_compute_capability: float | None = None
    model_load_device_limits: Sequence[ModelLoadDeviceLimit] = ()
    enable_peer_access: bool | None = None
    buffer_manager_thread_count: int | None = None
    repo_agent_directory: Place | None = None
    # Of this server alone. A port is opened if it has a number; 0 takes a free one.
    http_port: int | None = None
    http_address: str = "127.0.0.1"
    grpc_port: int | None = None
    grpc_address: str = "127.0.0.1"
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    flags: Sequence[str] = ()  # further flags of ``pybackend serve``

    @property
    def writes_log(self) -> bool:
        """True if the server writes its log itself."""
        return bool(self.log_info or self.log_warn or self.log_error or self.log_verbose or self.log_file)


_TEXTS = {
    "server_id": "--id",
    "model_control_mode": "--model-control-mode",
    "strict_model_config": "--disable-auto-complete-config",
    "strict_readiness": "--strict-readiness",
    "exit_on_error": "--exit-on-error",
    "exit_timeout": "--exit-timeout-secs",
    "rate_limiter_mode": "--rate-limit",
    "model_load_thread_count": "--model-load-thread-count",
    "model_load_retry_count": "--model-load-retry-count",
    "model_namespacing": "--model-namespacing",
    "log_file": "--log-file",
    "log_info": "--log-info",
    "log_warn": "--log-warning",
    "log_error": "--log-error",
    "log_format": "--log-format",
    "log_verbose": "--log-verbose",
    "gpu_metrics": "--allow-gpu-metrics",
    "cpu_metrics": "--allow-cpu-metrics",
    "metrics_interval": "--metrics-interval-ms",
    "backend_directory": "--backend-directory",
    "pinned_memory_pool_size": "--pinned-memory-pool-byte-size",
    "cache_directory": "--cache-directory",
    "min_supported_compute_capability": "--min-supported-compute-capability",
    "enable_peer_access": "--enable-peer-access",
    "buffer_manager_thread_count": "--buffer-manager-thread-count",
    "repo_agent_directory": "--repoagent-directory",
}
"""The flags of options with one value."""


_OPTIONS = {flag: name for name, flag in _TEXTS.items()}
_FLAG = re.compile(r"(--[a-z-]+)(=true|=false)?(?![a-z-])")


def in_options(text: str) -> str:
    """A message with the names of options in place of their flags."""

    def named(found: re.Match[str]) -> str:
        option = _OPTIONS.get(found[1])
        return found[0] if option is None else option + (found[2] or "").title()

    return _FLAG.sub(named, text).removeprefix("Error: ")


def settings_of(options: Options) -> Settings:
    """The settings of a server with these options.

    Raises ServerError: an option is wrong, or they contradict each other.
    """
    from pybackend.cli.command_line import parse_serve_flags

    for name, kind in get_type_hints(Options).items():
        value = getattr(options, name)
        if not _fits(value, kind):
            raise WrongTypeError(f"{name} is {brief(value)}: pass {_described(kind)}")
    settings = parse_serve_flags(list(_flags(options)))
    if not settings.place_names:
        raise InvalidArgumentError(
            "there is no model_repository: pass the directory of the models, or a list of directories"
        )
    return settings


_WORDS = {
    str: "a string", bool: "True or False", int: "a whole number", float: "a number", PathLike: "a path", Sequence: "a list",
    Mapping: "a dictionary", tuple: "a tuple", NoneType: "None",
}  # fmt: skip


def _described(kind: Any) -> str:
    """Describe the values of an option's type."""
    name = get_origin(kind) or kind
    if name in _WORDS:
        return _WORDS[name] + (f" of values, each {_described(get_args(kind)[0])}" if name is Sequence else "")
    parts = get_args(kind)
    return " or ".join(dict.fromkeys(map(_described, parts))) if parts else f"a {name.__name__}"


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an option's type."""
    name, parts = get_origin(kind) or kind, get_args(kind)
    if name is Any:
        return True
    if name is Sequence:
        return (
            isinstance(value, Sequence)
            and not isinstance(value, str | bytes)
            and all(_fits(each, parts[0]) for each in value)
        )
    if name is Mapping:
        return isinstance(value, Mapping) and all(_fits(each, parts[1]) for each in value.values())
    if name is tuple:
        return isinstance(value, tuple | list)
    if name in {int, float}:
        return isinstance(value, Integral if name is int else Real) and not isinstance(value, bool)
    if isinstance(name, type) and name is not UnionType:
        return isinstance(value, name)
    return any(_fits(value, part) for part in parts)


def _flags(options: Options) -> Iterator[str]:
    place = options.model_repository
    for each in [place] if isinstance(place, str | PathLike) else place:
        yield f"--model-repository={each}"
    for name, flag in _TEXTS.items():
        value = getattr(options, name)
        if value is not None:
            yield f"{flag}={_text(value)}"
    for model in options.startup_models:
        yield f"--load-model={model}"
    for resource in options.rate_limiter_resources:
        yield f"--rate-limit-resource={':'.join(str(part) for part in resource if part is not None)}"
    yield from _gpu_flags(options)
    for name, settings in options.cache_config.items():
        yield f"--cache-config={','.join([name, *_pairs(settings)])}"
    for flag, table in (("--backend-config", options.backend_configuration), ("--host-policy", options.host_policies)):
        for name, settings in table.items():
            yield from (f"{flag}={name},{pair}" for pair in _pairs(settings))
    yield from (f"--metrics-config={pair}" for pair in _pairs(options.metrics_configuration))
    for service in ("http", "grpc", "metrics"):
        yield from _port_flags(service, getattr(options, f"{service}_port"), getattr(options, f"{service}_address"))
    for flag in options.flags:
        if flag.partition("=")[0] == "--on":
            raise InvalidArgumentError("--on runs other servers: it cannot be a flag of a server in this process")
        yield flag


def _gpu_flags(options: Options) -> Iterator[str]:
    for device, size in options.cuda_memory_pool_sizes.items():
        yield f"--cuda-memory-pool-byte-size={device}:{size}"
    for limit in options.model_load_device_limits:
        yield f"--model-load-gpu-limit={limit.device}:{limit.fraction}"


def _port_flags(service: str, port: int | None, address: str) -> Iterator[str]:
    yield f"--allow-{service}={_text(port is not None)}"
    if port is not None:
        yield f"--{service}-port={port}"
        yield f"--{service}-address={address}"


def _pairs(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_text(value)}" for name, value in settings.items()]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.value if isinstance(value, StrEnum) else str(value)
