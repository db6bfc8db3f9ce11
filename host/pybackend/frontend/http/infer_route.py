"""Infer as an ordinary ASGI route: documents it in OpenAPI, and serves whoever mounts the application elsewhere.

Under this package's own server the protocol object answers these requests before ASGI sees them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response

from pybackend.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.frontend.http.infer_body import StreamedBody, check_encoding, check_model
from pybackend.frontend.http.model_path import model_name, model_path, version
from pybackend.model.model import Model, ModelState
from pybackend.protocol.infer_response import encode_response
from pybackend.protocol.limits import BodyLimits

_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"type": "string", "examples": ["FP32"]},
        "data": {"type": "array", "items": {}, "description": "flat or nested; absent for binary tensors"},
        "parameters": {"type": "object", "description": "`binary_data_size` for binary tensors"},
    },
}
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {"type": "object", "description": "custom parameters, and `binary_data_output`"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "parameters": {"type": "object", "description": "`binary_data`: true for a binary tensor"},
                },
            },
        },
    },
}
_RESPONSE = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "id": {"type": "string"},
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "parameters": {"type": "object"},
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
_BINARY = {"schema": {"type": "string", "format": "binary", "description": "a JSON part followed by binary tensors"}}
_ERROR = {
    "description": "what is wrong, and what to do about it",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}},
}
_OPENAPI: dict[str, Any] = {
    "parameters": [
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "required": False,
            "schema": {"type": "integer"},
            "description": "bytes of the JSON part, if binary tensors follow it; 0 if the body is one raw tensor",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _REQUEST}, "application/octet-stream": _BINARY},
    },
    "responses": {
        "200": {
            "description": "the outputs",
            "content": {"application/json": {"schema": _RESPONSE}, "application/octet-stream": _BINARY},
        },
        **dict.fromkeys(("400", "404", "500", "501", "503"), _ERROR),
    },
}


def add(app: FastAPI, engine: InferenceEngine, limits: BodyLimits) -> None:
    """Add the infer routes to an application."""

    async def infer(request: Request) -> Response:
        return await _infer(engine, limits, request)

    for path in ("/v2/models/{model_name}/infer", "/v2/models/{model_name}/versions/{version:int}/infer"):
        openapi = {**_OPENAPI, "parameters": [*model_path(path), *_OPENAPI["parameters"]]}
        app.post(
            path, tags=["inference"], summary="Run the model", name=path, response_model=None, openapi_extra=openapi
        )(infer)


async def _disconnected(request: Request) -> None:
    """Return when the client has gone, whose request has been read to the end."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _model(engine: InferenceEngine, request: Request) -> Model:
    model = engine.model(model_name(request), version(request))
    check_model(model)
    return model


async def _infer(engine: InferenceEngine, limits: BodyLimits, request: Request) -> Response:
    model = _model(engine, request)
    check_encoding(request.headers.get("content-encoding", ""))
    length = request.headers.get("content-length")
    header_length = request.headers.get("inference-header-content-length")
    body = StreamedBody(
        model,
        None if header_length is None else header_length.encode("latin-1"),
        None if length is None else int(length),
        limits,
    )
    try:
        async for piece in request.stream():
            if piece:
                body.feed(piece)
        if model.state is not ModelState.READY:  # it was while the body began: there may be a successor
            model = _model(engine, request)
        plan = body.finish(model)
    except BaseException:
        body.release()
        raise
    try:
        response = await engine.infer(model, plan.request, partial(_disconnected, request))
    except InferenceError:
        plan.request.release()  # the engine did not take it; after a cancellation its memory is the engine's
        raise
    try:
        if response.error is not None:
            raise response.error.again()
        encoded = encode_response(response, plan.output_format)
        # Another server's transport may keep what it is given: it gets a copy, never the shared memory.
        content = b"".join((encoded.header_json, *encoded.chunks))
    finally:
        response.release()
    if encoded.json_length is None:
        return Response(content, media_type="application/json")
    headers = {"inference-header-content-length": str(encoded.json_length)}
    return Response(content, media_type="application/octet-stream", headers=headers)
