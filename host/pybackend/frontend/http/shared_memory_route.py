"""The routes of the shared memory extension: clients register regions, and ask for and unregister them.

Requests then name a region in the parameters of a tensor; see :mod:`pybackend.frontend.http.infer_route`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.frontend.http.arrival import small_body
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.infer_route import ERRORS
from pybackend.frontend.http.model_path import client_address, name_in_path
from pybackend.protocol.documents.region import parse_registration

_REGISTRATION = {
    "type": "object",
    "required": ["key", "byte_size"],
    "properties": {
        "key": {"type": "string", "examples": ["/input"], "description": "the name of the shared memory object"},
        "offset": {"type": "integer", "minimum": 0, "default": 0},
        "byte_size": {"type": "integer", "minimum": 1},
    },
    "example": {"key": "/input", "offset": 0, "byte_size": 64},
}
_REGIONS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "key": {"type": "string"},
            "offset": {"type": "integer"},
            "byte_size": {"type": "integer"},
        },
    },
}

_Answer = Callable[[Request], Awaitable[Response]]


def add(app: FastAPI, frontend: InferFrontend) -> None:
    """Add the routes to an application."""
    engine = frontend.engine
    regions = engine.regions

    async def status(request: Request) -> Response:
        return _json(
            {"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.nbytes}
            for each in regions.status(_name(request))
        )

    async def register(request: Request) -> Response:
        regions.check_enabled()
        wanted = parse_registration(await small_body(frontend, request))
        regions.register(_name(request), wanted.key, wanted.offset, wanted.byte_size)
        return Response()

    async def unregister(request: Request) -> Response:
        regions.unregister(_name(request))
        return Response()

    async def cuda_status(request: Request) -> Response:
        regions.check_cuda_status(_name(request))
        return _json(())

    async def cuda_register(request: Request) -> Response:
        regions.refuse_cuda(_name(request))
        return Response()

    async def cuda_unregister(_request: Request) -> Response:
        regions.check_enabled()
        return Response()

    _add_kind(app, engine, "system", status, register, unregister)
    _add_kind(app, engine, "cuda", cuda_status, cuda_register, cuda_unregister)


def _add_kind(
    app: FastAPI, engine: InferenceEngine, kind: str, status: _Answer, register: _Answer, unregister: _Answer
) -> None:
    def counted(answer: _Answer) -> _Answer:
        async def count(request: Request) -> Response:
            try:
                return await answer(request)
            except InferenceError as error:
                engine.refusals.add_error(HTTP_CLIENT.protocol, "", error, client_address(request))
                raise

        return count

    def route(method: str, path: str, summary: str, answer: _Answer, openapi: dict[str, Any]) -> None:
        name = [{"name": "region", "in": "path", "required": True, "schema": {"type": "string"}}]
        document = {"parameters": name if "{region}" in path else [], **openapi}
        app.add_api_route(
            path,
            counted(answer),
            methods=[method],
            tags=["shared memory"],
            summary=summary,
            name=path,
            response_model=None,
            openapi_extra=document,
        )

    base = f"/v2/{kind}sharedmemory"
    listed = {"200": {"description": "the regions", "content": {"application/json": {"schema": _REGIONS}}}, **ERRORS}
    route("GET", f"{base}/status", f"All regions of {kind} shared memory", status, {"responses": listed})
    route("GET", f"{base}/region/{{region}}/status", "One region", status, {"responses": listed})
    body = {"required": True, "content": {"application/json": {"schema": _REGISTRATION}}} if kind == "system" else {}
    documented: dict[str, Any] = {"responses": {"200": {"description": "registered"}, **ERRORS}}
    if body:
        documented["requestBody"] = body
    route("POST", f"{base}/region/{{region}}/register", "Register a region", register, documented)
    forgotten = {"responses": {"200": {"description": "unregistered"}, **ERRORS}}
    route("POST", f"{base}/region/{{region}}/unregister", "Unregister a region", unregister, forgotten)
    route("POST", f"{base}/unregister", f"Unregister all regions of {kind} shared memory", unregister, forgotten)


def _name(request: Request) -> str:
    """The region in a request's path, ``""`` for all."""
    return name_in_path(request, "region")


def _json(documents: Any) -> Response:
    return Response(msgspec.json.encode(list(documents)), media_type="application/json")
