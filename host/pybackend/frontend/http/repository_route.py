"""The routes of the model repository extension: the index, and loading and unloading models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response

from pybackend.frontend.http.arrival import Arrival, small_body
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.infer_route import ERRORS
from pybackend.frontend.http.model_path import model_name, model_path
from pybackend.modelconfig.traffic import TrafficChange, TrafficReport
from pybackend.protocol.documents.repository import (
    index_document,
    parse_index_request,
    parse_load_request,
    parse_unload_request,
)
from pybackend.protocol.documents.traffic import traffic_change_in, traffic_document

_ON_LOOP_BYTES = 64 * 1024
"""A longer body is parsed on a thread: 64 MiB of base64 take a quarter of a second."""


def add(app: FastAPI, frontend: InferFrontend) -> None:
    """Add the repository routes to an application."""
    engine = frontend.engine

    async def index(request: Request) -> Response:
        only_ready = parse_index_request(await small_body(frontend, request))
        return Response(index_document(await engine.read_index(only_ready=only_ready)), media_type="application/json")

    async def load(request: Request) -> Response:
        engine.check_control(model_name(request))
        with Arrival(frontend, request) as arrival:
            body = await arrival.whole(frontend.limits.max_input_size_bytes, "use --http-max-input-size to increase it")
            config_json, files = await _parsed(body)
            await engine.load_model(model_name(request), config_json, files, of_client=True)
        return Response()

    async def unload(request: Request) -> Response:
        engine.check_control()
        unload_dependents = parse_unload_request(await small_body(frontend, request))
        await engine.unload_model(model_name(request), unload_dependents=unload_dependents)
        return Response()

    async def traffic(request: Request) -> Response:
        return _traffic_answer(engine.traffic(model_name(request)))

    async def change_traffic(request: Request) -> Response:
        engine.check_control()
        change = TrafficChange(**traffic_change_in(await small_body(frontend, request)))
        return _traffic_answer(await engine.change_traffic(model_name(request), change))

    path = "/v2/repository/models/{model_name}/traffic"
    summary = "The versions that answer requests without a version, and the shadow"
    parameters = {"parameters": model_path(path)}
    app.get(path, tags=["repository"], summary=summary, response_model=None, openapi_extra=parameters)(traffic)
    _post(app, path, "Change the weights of versions, or the shadow", change_traffic, _TRAFFIC)
    _post(app, "/v2/repository/index", "The models of the repositories, with their states", index, _INDEX)
    _post(
        app,
        "/v2/repository/models/{model_name}/load",
        "Load the model, or bring it up to date, and wait until it is ready",
        load,
        _LOAD,
    )
    _post(app, "/v2/repository/models/{model_name}/unload", "Begin to unload the model", unload, _UNLOAD)


def _post(
    app: FastAPI, path: str, summary: str, answer: Callable[[Request], Awaitable[Response]], schema: dict[str, Any]
) -> None:
    openapi: dict[str, Any] = {
        "parameters": model_path(path),
        "requestBody": {"required": False, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "done"}, **ERRORS},
    }
    app.post(path, tags=["repository"], summary=summary, name=path, response_model=None, openapi_extra=openapi)(answer)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_INDEX = _object(ready={"type": "boolean", "description": "true for ready versions only", "example": True})
_LOAD = _object(
    parameters=_object(
        config={"type": "string", "description": "JSON of the configuration to use instead of config.pbtxt"},
    )
    | {"additionalProperties": {"type": "string", "description": "`file:<path>`: base64 of a file of the model"}}
) | {"example": {}}
_UNLOAD = _object(
    parameters=_object(unload_dependents={"type": "boolean", "description": "true for the parts of an ensemble too"})
) | {"example": {}}


_TRAFFIC = _object(
    weights={"type": "object", "additionalProperties": {"type": "integer"}, "description": "weight of each version"},
    shadow=_object(version={"type": "integer"}, percent={"type": "number"}),
    reset={"type": "boolean", "description": "true for the rules of the model's configuration"},
) | {"example": {"weights": {"1": 1}}}


def _traffic_answer(report: TrafficReport) -> Response:
    document = traffic_document(report.name, report.rules, report.source, report.shares)
    return Response(document, media_type="application/json")


async def _parsed(body: bytes) -> tuple[str | None, dict[str, bytes]]:
    if len(body) <= _ON_LOOP_BYTES:
        return parse_load_request(body)
    return await asyncio.to_thread(parse_load_request, body)
