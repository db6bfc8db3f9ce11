"""The protocol extensions that an application serves, read from its routes, so that ``GET /v2`` tells the truth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute

_INFER = ("POST /v2/models/{}/infer",)
_LOADING = ("POST /v2/repository/index", "POST /v2/repository/models/{}/load", "POST /v2/repository/models/{}/unload")

_ROUTES: Mapping[str, Sequence[str]] = {
    "classification": _INFER,
    "sequence": _INFER,
    "model_repository": _LOADING,
    "model_repository(unload_dependents)": _LOADING,
    "schedule_policy": _INFER,
    "model_configuration": ("GET /v2/models/{}/config",),
    "system_shared_memory": (
        "GET /v2/systemsharedmemory/status",
        "POST /v2/systemsharedmemory/region/{}/register",
        "POST /v2/systemsharedmemory/region/{}/unregister",
    ),
    "cuda_shared_memory": (
        "GET /v2/cudasharedmemory/status",
        "POST /v2/cudasharedmemory/region/{}/register",
        "POST /v2/cudasharedmemory/region/{}/unregister",
    ),
    "binary_tensor_data": _INFER,
    "parameters": _INFER,
    "statistics": ("GET /v2/models/{}/stats",),
    "trace": ("GET /v2/trace/setting", "POST /v2/trace/setting"),
    "logging": ("GET /v2/logging", "POST /v2/logging"),
}
"""The routes that each extension needs. Names and order are the protocol's; clients read the list to choose features."""


def served_extensions(app: FastAPI) -> list[str]:
    """The extensions whose routes are all registered, in the protocol's order."""
    served = {
        f"{method} {re.sub(r'{[^}]*}', '{}', route.path)}"
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    return [name for name, routes in _ROUTES.items() if served.issuperset(routes)]
