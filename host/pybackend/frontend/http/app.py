"""The FastAPI application: every route of the v2 protocol except the fast path of infer, and the OpenAPI document."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from pybackend import __version__
from pybackend.engine.answers import RefusalReason
from pybackend.engine.description import ModelDescription
from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.http import (
    control_routes,
    documentation,
    generate_route,
    infer_route,
)
from pybackend.frontend.http.answer_writer import INTERNAL, STATUS
from pybackend.frontend.http.api import Apis
from pybackend.frontend.http.arrival import SlowSenderError
from pybackend.frontend.http.content_coding import ACCEPTED, UnsupportedCodingError
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_frontend import RouteFrontend
from pybackend.frontend.http.routes import (
    MODEL,
    VERSION,
    RoutedRequests,
    add_route,
    client_address,
    model_name,
    version,
)
from pybackend.protocol.documents.metadata import (
    encode_error,
    environment_document,
    model_metadata,
    sandbox_document,
    server_metadata,
)

_JSON = "application/json"

_ADVICE = {
    404: ". GET /v2/models lists the models that serve, and /docs all routes",
    405: ". The page /docs says which methods a route has",
}
"""Advice behind the reason of a refusal, by status."""


def make_app(frontend: RouteFrontend, apis: Apis | None = None) -> FastAPI:
    """The application; ``frontend`` is what its routes share with the connections, ``apis`` are served beside v2."""
    engine, apis = frontend.engine, apis or Apis()
    app = documentation.DocumentedApp(
        frontend,
        title="pybackend",
        version=__version__,
        description="The v2 inference protocol (KServe) with the binary tensor extension.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        advice = _ADVICE.get(error.status_code, "")
        if error.status_code == HTTPStatus.NOT_FOUND:
            of_api = apis.advice(request.scope["path"])
            advice = advice if of_api is None else of_api
        headers = error.headers
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"allow": ", ".join(_methods(app, request))}
        path = request.scope.get("raw_path") or request.url.path.encode()
        message = f"{request.method} {path.decode('latin-1')}: {error.detail}"
        engine.refusals.add(HTTP_CLIENT.protocol, RefusalReason.UNKNOWN_ROUTE, message, sender=client_address(request))
        body = apis.error_body(request.scope["path"], error.detail + advice, error.status_code)
        return Response(body, error.status_code, headers=headers, media_type=_JSON)

    async def unexpected_error(request: Request, _error: Exception) -> Response:
        # The mistake of the server's own is logged by the server that runs the application.
        body = apis.error_body(request.scope["path"], INTERNAL, 500)
        return Response(body, 500, {"connection": "close"}, media_type=_JSON)

    app.add_middleware(RoutedRequests)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(InferenceError, _inference_error)
    app.add_exception_handler(Exception, unexpected_error)
    _add_health(app, engine)
    _add_metadata(app, engine)
    _add_processes(app, engine)
    infer_route.add(app, frontend)
    generate_route.add(app, frontend)
    apis.add_routes(app, frontend)
    control_routes.add_repository(app, frontend)
    control_routes.add_settings(app, frontend)
    control_routes.add_shared_memory(app, frontend)
    documentation.add(app)

    @app.get("/", include_in_schema=False, response_model=None)
    async def root() -> RedirectResponse:
        return RedirectResponse(documentation.PAGE)

    return app


def _methods(app: FastAPI, request: Request) -> list[str]:
    """The methods of all routes with a request's path: each route knows its own only, and those for GET answer HEAD, too."""
    found = {
        method
        for route in app.routes
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _add_health(app: FastAPI, engine: InferenceEngine) -> None:
    """Add the routes for probes.

    Those look at the status; the Open Inference Protocol and KServe's client at the bodies.
    """

    def answer(fact: str, holds: bool, reason: str = "", **names: str) -> Response:
        status = 200 if holds else 400
        if engine.is_exiting:
            holds, reason, status = False, "Server exiting", 503
        members: dict[str, Any] = {**names, fact: holds}
        if reason and not holds:
            members["error"] = reason
        return Response(msgspec.json.encode(members), status, media_type=_JSON)

    async def live(_request: Request) -> Response:
        return answer("live", True)

    async def ready(_request: Request) -> Response:
        return answer("ready", await engine.is_ready())

    async def model_ready(request: Request) -> Response:
        name = model_name(request)
        try:
            is_ready = await engine.would_answer(name, version(request))
        except InferenceError:
            is_ready = False  # an unknown model is not ready; the reason does not matter
        return answer("ready", is_ready, "Model version not ready", name=name)

    add = partial(add_route, app, "GET")
    add("/v2/health/live", "health", "Is the server running?", live)
    add("/v2/health/ready", "health", "Should clients send requests?", ready)
    add(f"{MODEL}/ready", "health", "Is the model serving?", model_ready)
    add(f"{VERSION}/ready", "health", "Is the version serving?", model_ready)


def _add_metadata(app: FastAPI, engine: InferenceEngine) -> None:
    async def server(_request: Request) -> Response:
        document = server_metadata(engine.server_id, __version__, served_extensions(app))
        return Response(document, media_type=_JSON)

    async def models(_request: Request) -> Response:
        return Response(msgspec.json.encode({"models": engine.serving_names}), media_type=_JSON)

    async def metadata(request: Request) -> Response:
        model = engine.describe(model_name(request), version(request))
        return Response(model_metadata(model.signature, model.versions, model.platform), media_type=_JSON)

    async def config(request: Request) -> Response:
        model = engine.describe(model_name(request), version(request))
        return Response(msgspec.json.encode(model.document), media_type=_JSON)

    async def statistics(request: Request) -> Response:
        rows = engine.statistics(model_name(request), version(request))
        parts = [msgspec.json.encode(part)[1:-1] async for part in rows]
        return Response(b'{"model_stats":[%b]}' % b",".join(parts), media_type=_JSON)

    add = partial(add_route, app, "GET")
    add("/v2/models/stats", "statistics", "Statistics of all models", statistics)
    add(f"{MODEL}/stats", "statistics", "Statistics of a model's versions", statistics)
    add(f"{VERSION}/stats", "statistics", "A version's statistics", statistics)
    add("/v2", "metadata", "Name, version and extensions of the server", server)
    add("/v2/models", "metadata", "The names of the models that serve", models)
    add(MODEL, "metadata", "Inputs and outputs of a model", metadata)
    add(VERSION, "metadata", "Inputs and outputs of a version", metadata)
    add(f"{MODEL}/config", "metadata", "The effective configuration", config)
    add(f"{VERSION}/config", "metadata", "A version's configuration", config)


def _add_processes(app: FastAPI, engine: InferenceEngine) -> None:
    """Add the routes that the protocol lacks: their facts must not become members of the protocol's documents."""

    async def sandbox(request: Request) -> Response:
        return Response(sandbox_document(_with_processes(engine, request).confinement), media_type=_JSON)

    async def environment(request: Request) -> Response:
        return Response(environment_document(_with_processes(engine, request).environment), media_type=_JSON)

    async def stack(request: Request) -> Response:
        document = {"instances": await engine.stacks(model_name(request))}
        return Response(msgspec.json.encode(document), media_type=_JSON)

    add = partial(add_route, app, "GET")
    add(f"{MODEL}/stack", "pybackend", "Where the threads and coroutines of the model's processes are", stack)
    for path in (MODEL, VERSION):
        add(f"{path}/sandbox", "pybackend", "The confinement of the model's processes", sandbox)
        add(f"{path}/environment", "pybackend", "The Python that the model's processes run on", environment)


def _with_processes(engine: InferenceEngine, request: Request) -> ModelDescription:
    model = engine.describe(model_name(request), version(request))
    if "ensemble_scheduling" in model.document:
        raise InferenceError(
            f"ensemble '{model_name(request)}' runs in the processes of its parts: ask for those, which its configuration "
            "names",
            ErrorCode.NOT_FOUND,
        )
    return model


async def _inference_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, InferenceError)
    headers = {}
    if isinstance(error, UnsupportedCodingError):
        headers["accept-encoding"] = ACCEPTED
    elif isinstance(error, SlowSenderError):
        headers["connection"] = "close"
    return Response(encode_error(error.message), STATUS[error.code], headers, media_type=_JSON)


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
"""The routes that each extension needs. Names and order are the protocol's; clients read the list to choose features.
"""


def served_extensions(app: FastAPI) -> list[str]:
    """The extensions whose routes are all registered, in the protocol's order."""
    served = {
        f"{method} {re.sub(r'{[^}]*}', '{}', route.path)}"
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    return [name for name, routes in _ROUTES.items() if served.issuperset(routes)]
