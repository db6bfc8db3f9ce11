"""Settings that several flags decide together, or variables of other programs."""

import argparse
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from pybackend.cli.backend_config import backend_warnings
from pybackend.cli.cache_config import cache_settings
from pybackend.cli.flag_values import absolute, metrics_choices, metrics_warnings, repository_place, resource_limits
from pybackend.cli.flags import UNUSED
from pybackend.cli.trace_config import trace_settings, trace_warnings
from pybackend.errors import ServerError, SettingError
from pybackend.plugins import STORAGE
from pybackend.settings import (
    ALL_ADDRESSES,
    LOCAL_ADDRESS,
    ApiKeySettings,
    CloudSettings,
    CorsSettings,
    DebugSettings,
    KeyExemption,
    ModelControlMode,
    SandboxSettings,
    TlsSettings,
    half_of_memory_bytes,
)
from pybackend_wire.confinement import LEVELS

_ACTIONS = ("infer", "generate", "generate_stream")

_LOG_ESCAPES = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
"""The reference's variable: 0 or false leaves messages unquoted."""


def decided(given: argparse.Namespace, environ: Mapping[str, str], *, needs_repository: bool) -> dict[str, Any]:
    """The fields of the settings that no single flag decides, by their paths.

    Raises ServerError if flags contradict each other, or there is no repository.
    """
    directories, urls = _repositories(given, environ, needs_repository=needs_repository)
    startup_models = _startup_models(given)
    clouds = _clouds(given, environ)
    return {
        "repositories": directories,
        "cloud_repositories.urls": urls,
        "cloud_repositories.kept_in": _kept_in(urls, given.repository_cache_directory),
        "models.startup_models": startup_models,
        "models.auto_complete": not (given.disable_auto_complete_config or given.strict_model_config),
        "tensor_memory_limit_bytes": given.tensor_memory_limit
        or max(given.model_memory_limit or 0, half_of_memory_bytes()),
        "clouds": clouds,
        **_endpoints(given, clouds),
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
    if not repositories and environ.get("AIP_STORAGE_URI") and _serves_vertex_ai(given, environ):
        repositories = [repository_place(environ["AIP_STORAGE_URI"])]
    if needs_repository and not repositories:
        raise ServerError(
            "creating server: Invalid argument - --model-repository must be specified: `pybackend serve DIRECTORY`"
        )
    # Absolute: models receive these paths, and may change their working directory.
    directories = tuple(place.absolute() for place in repositories if isinstance(place, Path))
    return directories, tuple(place for place in repositories if isinstance(place, str))


def _kept_in(urls: Sequence[str], chosen: Path | None) -> tuple[Path, ...]:
    """The directories that keep what is downloaded."""
    return tuple(STORAGE.load().cache_directories(urls, absolute(chosen))) if urls else ()


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


def _endpoints(given: argparse.Namespace, clouds: Sequence[CloudSettings]) -> dict[str, Any]:
    """Fields of the endpoints. Vertex AI takes the place of HTTP and gRPC, unless these are requested."""
    if given.http_max_input_size <= 0:
        raise SettingError("--http-max-input-size must be greater than 0.")
    metrics_address = given.metrics_address or (
        "127.0.0.1" if given.http_address.startswith(LOCAL_ADDRESS) else given.http_address
    )
    allowed = not any(cloud.redirect_header for cloud in clouds)
    services = (
        ("HTTP", allowed if given.allow_http is None else given.allow_http, given.http_address, given.http_port),
        ("gRPC", allowed if given.allow_grpc is None else given.allow_grpc, given.grpc_address, given.grpc_port),
        ("Metrics", given.allow_metrics, metrics_address, given.metrics_port),
    )
    _check_ports(*services, *((cloud.name, True, ALL_ADDRESSES, cloud.port) for cloud in clouds))
    fields = {
        "http.enabled": services[0][1],
        "http.tls": _tls(given, "http"),
        "http.cors": _cors(given),
        "http.metrics_address": metrics_address,
        "grpc.enabled": services[1][1],
        "grpc.tls": _tls(given, "grpc"),
    }
    _check_safe_ports(given, *services)
    return fields


def _check_ports(*services: tuple[str, bool, str, int]) -> None:
    """Refuse two services at one address and port; each is a name, whether it is served, an address and a port."""
    for (name, served, *place), (other, other_served, *other_place) in combinations(services, 2):
        is_local = str(place[0]).startswith(LOCAL_ADDRESS)
        same = place[0] == other_place[0] if is_local else place == other_place and place[1] != 0
        if served and other_served and same:
            raise ServerError(
                f"The server cannot listen to {name} requests and {other} requests at the same address"
                f"{f' {place[0]}' if is_local else f' and port {place[0]}:{place[1]}'}"
            )


def _check_safe_ports(given: argparse.Namespace, *services: tuple[str, bool, str, int]) -> None:
    """Refuse a service whose port is outside of ``--sagemaker-safe-port-range``; services as above."""
    if given.sagemaker_safe_port_range is None:
        return
    first, last = given.sagemaker_safe_port_range
    for name, served, _, port in services:
        if served and not first <= port <= last:
            called = {"gRPC": "GRPC", "Metrics": "metrics"}.get(name, name)  # as the reference's texts write them
            raise ServerError(
                f"The server cannot listen to {called} requests at port {port}, allowed port range is [{first}, {last}]"
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
    return ApiKeySettings(given.api_key_file.absolute(), given.api_key_exempt)


# Clouds


def _serves_vertex_ai(given: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    if given.allow_vertex_ai is None:
        return environ.get("AIP_MODE") == "PREDICTION"
    return bool(given.allow_vertex_ai)


def _clouds(given: argparse.Namespace, environ: Mapping[str, str]) -> tuple[CloudSettings, ...]:
    clouds = []
    if given.allow_sagemaker:
        clouds.append(_sagemaker(given, environ))
    if _serves_vertex_ai(given, environ):
        clouds.append(_vertex_ai(given, environ))
    return tuple(clouds)


def _sagemaker(given: argparse.Namespace, environ: Mapping[str, str]) -> CloudSettings:
    return CloudSettings(
        name="Sagemaker",
        port=given.sagemaker_port,
        health_route="/ping",
        predict_route="/invocations",
        media_type="application/vnd.sagemaker-triton.binary+json;json-header-size=",
        exemption=KeyExemption.SAGEMAKER,
        health=_choice(environ, "SAGEMAKER_TRITON_PING_MODE", "ready", "live"),
        action=_choice(environ, "SAGEMAKER_TRITON_INFERENCE_TYPE", *_ACTIONS),
        model=environ.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", ""),
        model_source="the variable SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
    )


def _vertex_ai(given: argparse.Namespace, environ: Mapping[str, str]) -> CloudSettings:
    for variable in ("AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"):
        if not environ.get(variable, "").startswith("/"):
            raise SettingError(
                f"Vertex AI sets the variable {variable} to a path such as /predict: set it, or leave out "
                "--allow-vertex-ai."
            )
    return CloudSettings(
        name="Vertex AI",
        port=_vertex_port(environ) if given.vertex_ai_port is None else given.vertex_ai_port,
        health_route=environ["AIP_HEALTH_ROUTE"],
        predict_route=environ["AIP_PREDICT_ROUTE"],
        media_type="application/vnd.vertex-ai-triton.binary+json;json-header-size=",
        exemption=KeyExemption.VERTEX_AI,
        model=given.vertex_ai_default_model,
        model_source="--vertex-ai-default-model",
        redirect_header="x-vertex-ai-triton-redirect",
    )


def _vertex_port(environ: Mapping[str, str]) -> int:
    text = environ.get("AIP_HTTP_PORT", "8080")
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise SettingError(f"the variable AIP_HTTP_PORT is {text}, which is no port: set it to one such as 8080.")
    return int(text)


def _choice(environ: Mapping[str, str], variable: str, *choices: str) -> str:
    """The value of a variable, the first choice if it is not set."""
    value = environ.get(variable) or choices[0]
    if value not in choices:
        raise SettingError(f"the variable {variable} is {value}: set it to {', '.join(choices[:-1])} or {choices[-1]}.")
    return value
