"""The group to which a route or a method belongs, by its path alone: what lies behind the path makes no difference."""

from pybackend.settings import ApiGroup

_BY_END = {
    "ready": ApiGroup.HEALTH,
    "config": ApiGroup.MODEL_CONFIG,
    "sandbox": ApiGroup.MODEL_CONFIG,
    "environment": ApiGroup.MODEL_CONFIG,
    "stats": ApiGroup.STATISTICS,
    "infer": ApiGroup.INFERENCE,
    "generate": ApiGroup.INFERENCE,
    "generate_stream": ApiGroup.INFERENCE,
}
"""Routes of a model, by the last part of their path."""

_BY_BEGIN = {
    "trace": ApiGroup.TRACE,
    "logging": ApiGroup.LOGGING,
    "diagnostics": ApiGroup.DIAGNOSTICS,
    "repository": ApiGroup.MODEL_REPOSITORY,
    "systemsharedmemory": ApiGroup.SHARED_MEMORY,
    "cudasharedmemory": ApiGroup.SHARED_MEMORY,
}
"""Other routes, by the first part of their path after ``/v2``."""


def http_group(path: str) -> ApiGroup | None:
    """The group of a route of the v2 protocol; None for a path that belongs to none.

    The path is decoded, without the query.
    """
    root, *parts = path.split("/")
    if root or parts[:1] != ["v2"]:
        return None
    match parts[1:]:
        case []:
            return ApiGroup.METADATA
        case ["models"]:
            return ApiGroup.MODEL_REPOSITORY  # it tells what the index tells
        case ["models", *rest]:
            return _group_of_model(rest)
        case ["health", "live" | "ready"]:
            return ApiGroup.HEALTH
        case [begin, *_]:
            return _BY_BEGIN.get(begin)
    return None


def _group_of_model(parts: list[str]) -> ApiGroup | None:
    match parts:
        case ["stats"]:
            return ApiGroup.STATISTICS
        case [_] | [_, "versions", _]:
            return ApiGroup.METADATA
        case [_, "trace", "setting"] | [_, "stack"]:
            return ApiGroup.TRACE
        case [_, end] | [_, "versions", _, end]:
            return _BY_END.get(end)
    return None


_INFERENCE = "/inference.GRPCInferenceService/"

_METHODS = {
    ApiGroup.HEALTH: ("ServerLive", "ServerReady", "ModelReady"),
    ApiGroup.METADATA: ("ServerMetadata", "ModelMetadata"),
    ApiGroup.INFERENCE: ("ModelInfer", "ModelStreamInfer"),
    ApiGroup.SHARED_MEMORY: tuple(
        f"{kind}SharedMemory{action}" for kind in ("System", "Cuda") for action in ("Status", "Register", "Unregister")
    ),
    ApiGroup.MODEL_CONFIG: ("ModelConfig",),
    ApiGroup.MODEL_REPOSITORY: ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    ApiGroup.STATISTICS: ("ModelStatistics",),
    ApiGroup.TRACE: ("TraceSetting",),
    ApiGroup.LOGGING: ("LogSettings",),
}

_BY_METHOD = {_INFERENCE + name: group for group, names in _METHODS.items() for name in names}


def grpc_group(path: str) -> ApiGroup | None:
    """The group of a method, ``/package.Service/Method``; None for a path that belongs to none."""
    if path.startswith("/grpc.health.v1.Health/"):
        return ApiGroup.HEALTH
    return _BY_METHOD.get(path)
