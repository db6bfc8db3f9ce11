"""Settings that several flags decide together, or variables of other programs."""

import argparse
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from pybackend.cli.backend_config import backend_warnings
from pybackend.cli.cache_config import cache_settings
from pybackend.cli.flag_values import (
    absolute,
    absolute_if_given,
    metrics_choices,
    metrics_warnings,
    repository_place,
    resource_limits,
)
from pybackend.cli.flags import UNUSED
from pybackend.cli.trace_config import trace_settings, trace_warnings
from pybackend.errors import ServerError, SettingError
from pybackend.frontend.http.further_port import FurtherService
from pybackend.plugins import STORAGE, further_port_owners
from pybackend.settings import (
    ALL_ADDRESSES,
    LOCAL_ADDRESS,
    ApiKeySettings,
    CorsSettings,
    DebugSettings,
    FurtherPortSettings,
    ModelControlMode,
    SandboxSettings,
    TlsSettings,
    half_of_memory_bytes,
)
from pybackend_wire.confinement import LEVELS

_LOG_ESCAPES = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
"""The reference's variable: 0 or false leaves messages unquoted."""


def decided(given: argparse.Namespace, environ: Mapping[str, str], *, needs_repository: bool) -> dict[str, Any]:
    """The fields of the settings that no single flag decides, by their paths.

    Raises ServerError if flags contradict each other, or there is no repository.
    """
    directories, urls = _repositories(given, environ, needs_repository=needs_repository)
    startup_models = _startup_models(given)
    ports = [port for owner in further_port_owners() for port in owner.ports(given, environ)]
    return {
        "repositories": directories,
        "cloud_repositories.urls": urls,
        "cloud_repositories.kept_in": _kept_in(urls, given.repository_cache_directory),
        "models.startup_models": startup_models,
        "models.auto_complete": not (given.disable_auto_complete_config or given.strict_model_config),
        "tensor_memory_limit_bytes": given.tensor_memory_limit
        or max(given.model_memory_limit or 0, half_of_memory_bytes()),
        "further_ports": tuple(ports),
        **_endpoints(given, ports),
        **{f"metrics.{name}": value for name, value in metrics_choices(given.metrics_config).items()},
        "api_keys": _api_keys(given),
        "log.escapes": environ.get(_LOG_ESCAPES, "1").lower() not in {"0", "false"},
        "debug.models": _debugged_models(given),
        "resource_limits": resource_limits(given.rate_limit_resource, enabled=given.rate_limit),
        "cache": cache_settings(given.cache_config, given.response_cache_byte_size),
        "sandbox.level": _sandbox_level(given),
        "trace": trace_settings(given, environ),
    }


def warnings_of(given: argparse.Namespace) -> tuple[str, ...]:
    """Sentences about flags that have no effect, for the log."""
    unused = [f"{flag.name} ({flag.text})" for flag in UNUSED if vars(given)[flag.key] is not None]
    return (
        *backend_warnings(given.backend_config),
        *metrics_warnings(given.metrics_config),
        *trace_warnings(given),
        *([f"without effect in this server, and safe to leave out: {', '.join(unused)}"] if unused else []),
    )


# Models


def _repositories(
    given: argparse.Namespace, environ: Mapping[str, str], *, needs_repository: bool
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    repositories = ([given.repository] if given.repository else []) + given.model_repository
    if not repositories:
        places = [owner.repository(given, environ) for owner in further_port_owners()]
        repositories = [repository_place(place) for place in places if place]
    if needs_repository and not repositories:
        raise ServerError(
            "creating server: Invalid argument - --model-repository must be specified: `pybackend serve DIRECTORY`"
        )
    directories = tuple(absolute(place) for place in repositories if isinstance(place, Path))
    return directories, tuple(place for place in repositories if isinstance(place, str))


def _kept_in(urls: Sequence[str], chosen: Path | None) -> tuple[Path, ...]:
    """The directories that keep what is downloaded."""
    return tuple(STORAGE.load().cache_directories(urls, absolute_if_given(chosen))) if urls else ()


def _startup_models(given: argparse.Namespace) -> tuple[str, ...] | None:
    """The names to load at start, None for all."""
    names = tuple(dict.fromkeys(given.load_model))
    if given.model_control_mode is not ModelControlMode.EXPLICIT:
        if names:
            raise SettingError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        return None
    if "*" not in names:
        return names
    if len(names) > 1:
        raise ServerError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    return None


def _debugged_models(given: argparse.Namespace) -> tuple[str, ...]:
    if not given.debug and (given.debug_wait or given.debug_port != DebugSettings().port):
        raise SettingError("--debug-port and --debug-wait need --debug=MODEL, which says what to debug.")
    return tuple(dict.fromkeys(given.debug))


def _sandbox_level(given: argparse.Namespace) -> str:
    level, floor = given.sandbox or SandboxSettings().level, given.sandbox_floor
    if LEVELS.index(level) >= LEVELS.index(floor):
        return str(level)
    if given.sandbox is not None:
        raise SettingError(f"--sandbox={level} is below --sandbox-floor={floor}.")
    return str(floor)


# Endpoints


def _endpoints(given: argparse.Namespace, ports: Sequence[FurtherPortSettings]) -> dict[str, Any]:
    """Fields of the endpoints. A further port may take the place of HTTP and gRPC, unless these are requested."""
    if given.http_max_input_size <= 0:
        raise SettingError("--http-max-input-size must be greater than 0.")
    metrics_address = given.metrics_address or (
        "127.0.0.1" if given.http_address.startswith(LOCAL_ADDRESS) else given.http_address
    )
    allowed = not any(port.replaces_v2 for port in ports)
    services = (
        FurtherService(
            "HTTP", allowed if given.allow_http is None else given.allow_http, given.http_address, given.http_port
        ),
        FurtherService(
            "gRPC", allowed if given.allow_grpc is None else given.allow_grpc, given.grpc_address, given.grpc_port
        ),
        FurtherService("Metrics", given.allow_metrics, metrics_address, given.metrics_port),
    )
    _check_ports(*services, *(FurtherService(port.name, True, ALL_ADDRESSES, port.port) for port in ports))
    fields = {
        "http.enabled": services[0].is_served,
        "http.tls": _tls(given, "http"),
        "http.cors": _cors(given),
        "http.metrics_address": metrics_address,
        "grpc.enabled": services[1].is_served,
        "grpc.tls": _tls(given, "grpc"),
    }
    for owner in further_port_owners():
        owner.check(given, services)
    return fields


def _check_ports(*services: FurtherService) -> None:
    """Refuse two services at one address and port."""
    for (name, served, *place), (other, other_served, *other_place) in combinations(services, 2):
        is_local = str(place[0]).startswith(LOCAL_ADDRESS)
        same = place[0] == other_place[0] if is_local else place == other_place and place[1] != 0
        if served and other_served and same:
            raise ServerError(
                f"The server cannot listen to {name} requests and {other} requests at the same address"
                f"{f' {place[0]}' if is_local else f' and port {place[0]}:{place[1]}'}"
            )


def _tls(given: argparse.Namespace, service: str) -> TlsSettings | None:
    values = vars(given)
    certificate, key, root = (values[f"{service}_{name}"] for name in ("server_cert", "server_key", "root_cert"))
    mutual = values[f"{service}_use_ssl_mutual"]
    if not (mutual or values[f"{service}_use_ssl"]):
        if certificate or key or root:
            raise SettingError(f"certificates are given, but not --{service}-use-ssl, which uses them.")
        return None
    if certificate is None or key is None:
        raise SettingError(f"--{service}-use-ssl needs --{service}-server-cert and --{service}-server-key.")
    return TlsSettings(certificate, key, root, mutual)


def _cors(given: argparse.Namespace) -> CorsSettings | None:
    if not given.http_cors_origin:
        if given.http_cors_credentials:
            raise SettingError("--http-cors-credentials needs --http-cors-origin, which names the pages.")
        return None
    if given.http_cors_credentials and "*" in given.http_cors_origin:
        raise SettingError(
            "--http-cors-credentials with --http-cors-origin=* would let every web page act for the user: name the "
            "origins."
        )
    return CorsSettings(frozenset(given.http_cors_origin), given.http_cors_credentials)


def _api_keys(given: argparse.Namespace) -> ApiKeySettings | None:
    if given.api_key_file is None:
        if given.api_key_exempt:
            raise SettingError("--api-key-exempt needs --api-key-file, which holds the keys of all other calls.")
        return None
    return ApiKeySettings(absolute(given.api_key_file), given.api_key_exempt)
