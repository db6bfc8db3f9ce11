"""The routes of the model repository extension: the index, and loading and unloading models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response

from pybackend.engine.engine import InferenceEngine
from pybackend.frontend.http.content_coding import refuse_compressed
from pybackend.frontend.http.infer_route import ERRORS
from pybackend.frontend.http.model_path import model_name, model_path
from pybackend.frontend.kept_bytes import KeptBytes
from pybackend.frontend.pace import Pace
from pybackend.modelconfig.traffic import TrafficChange, TrafficReport
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.repository_request import (
    index_document,
    parse_index_request,
    parse_load_request,
    parse_unload_request,
)
from pybackend.protocol.traffic_document import traffic_change_in, traffic_document

_ON_LOOP_BYTES = 64 * 1024
"""A longer body is parsed on a thread: 64 MiB of base64 take a quarter of a second."""


class _Body:
    """A body that is being received, in the account of bytes buffered for clients."""

    unread = ()

    def __init__(self) -> None:
        self.pace = Pace()

    def make_room(self) -> None:
        """Never called: the connection's own pace ends slow clients."""


def add(app: FastAPI, engine: InferenceEngine, limits: BodyLimits, kept: KeptBytes) -> None:
    """Add the repository routes to an application.

    Args:
        app: the application.
        engine: finds, loads and unloads the models.
        limits: bounds of bodies.
        kept: the account of bytes buffered for clients.
    """

    async def index(request: Request) -> Response:
        async with _body_of(request, limits, kept) as body:
            rows = await engine.read_index(only_ready=parse_index_request(body))
        return Response(index_document(rows), media_type="application/json")

    async def load(request: Request) -> Response:
        async with _body_of(request, limits, kept) as body:
            engine.check_control(model_name(request))
            config_json, files = await _parsed(body)
            await engine.load_model(model_name(request), config_json, files, of_client=True)
        return Response()

    async def unload(request: Request) -> Response:
        async with _body_of(request, limits, kept) as body:
            engine.check_control()
            await engine.unload_model(model_name(request), unload_dependents=parse_unload_request(body))
        return Response()

    async def traffic(request: Request) -> Response:
        return _traffic_answer(engine.traffic(model_name(request)))

    async def change_traffic(request: Request) -> Response:
        async with _body_of(request, limits, kept) as body:
            change = TrafficChange(**traffic_change_in(body))
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


_INDEX = _object(ready={"type": "boolean", "description": "true for ready versions only"})
_LOAD = _object(
    parameters=_object(
        config={"type": "string", "description": "JSON of the configuration to use instead of config.pbtxt"},
    )
    | {"additionalProperties": {"type": "string", "description": "`file:<path>`: base64 of a file of the model"}}
)
_UNLOAD = _object(
    parameters=_object(unload_dependents={"type": "boolean", "description": "true for the parts of an ensemble too"})
)


_TRAFFIC = _object(
    weights={"type": "object", "additionalProperties": {"type": "integer"}, "description": "weight of each version"},
    shadow=_object(version={"type": "integer"}, percent={"type": "number"}),
    reset={"type": "boolean", "description": "true for the rules of the model's configuration"},
)


def _traffic_answer(report: TrafficReport) -> Response:
    document = traffic_document(report.name, report.rules, report.source, report.shares)
    return Response(document, media_type="application/json")


@asynccontextmanager
async def _body_of(request: Request, limits: BodyLimits, kept: KeptBytes) -> AsyncIterator[bytes]:
    """The whole body of a request, for as long as it is counted.

    Raises:
        InferenceError: it is compressed or too large, or there is no memory for it.
    """
    refuse_compressed(request.headers.get("content-encoding", "").encode("latin-1"))
    keeper, body = _Body(), bytearray()
    try:
        async for piece in request.stream():
            limits.check_json(len(body) + len(piece))
            if len(body) + len(piece) > _ON_LOOP_BYTES and not kept.claim(keeper, len(body) + len(piece)):
                raise kept.error(len(body) + len(piece))
            body += piece
        yield bytes(body)
    finally:
        kept.claim(keeper, 0)


async def _parsed(body: bytes) -> tuple[str | None, dict[str, bytes]]:
    if len(body) <= _ON_LOOP_BYTES:
        return parse_load_request(body)
    return await asyncio.to_thread(parse_load_request, body)
