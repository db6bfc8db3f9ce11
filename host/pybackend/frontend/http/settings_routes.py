"""The routes that read and change settings of the running server: its log, and its traces."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from pybackend.frontend.http.arrival import small_body
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.model_path import model_name, model_path
from pybackend.observability.logging import LOG
from pybackend.protocol.documents.log import log_changes_in, log_document
from pybackend.protocol.documents.trace import trace_changes_in, trace_document

_JSON = "application/json"


def add(app: FastAPI, frontend: InferFrontend) -> None:
    """Add the routes to an application."""
    engine = frontend.engine

    async def log_settings(_request: Request) -> Response:
        return Response(log_document(LOG.settings), media_type=_JSON)

    async def change_log_settings(request: Request) -> Response:
        LOG.change(**log_changes_in(await small_body(frontend, request)))
        return Response(log_document(LOG.settings), media_type=_JSON)

    get: dict[str, Any] = {"tags": ["logging"], "response_model": None}
    app.get("/v2/logging", summary="The settings of the log", **get)(log_settings)
    app.post("/v2/logging", summary="Change settings of the log", **get)(change_log_settings)

    async def trace_settings(request: Request) -> Response:
        return Response(trace_document(engine.tracer.settings_of(_traced(request))), media_type=_JSON)

    async def change_trace_settings(request: Request) -> Response:
        name = _traced(request)
        engine.tracer.change(name, trace_changes_in(await small_body(frontend, request)))
        return Response(trace_document(engine.tracer.settings_of(name)), media_type=_JSON)

    def _traced(request: Request) -> str:
        """The full name of the model in the path, empty for the whole server."""
        name = model_name(request)
        return engine.serving(name) if name else ""

    for path in ("/v2/trace/setting", "/v2/models/{model_name}/trace/setting"):
        more: dict[str, Any] = {
            "tags": ["trace"],
            "response_model": None,
            "name": path,
            "openapi_extra": {"parameters": model_path(path)},
        }
        app.get(path, summary="The settings of traces", **more)(trace_settings)
        app.post(path, summary="Change settings of traces", **more)(change_trace_settings)
