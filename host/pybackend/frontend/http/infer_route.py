"""Infer as an ordinary ASGI route, for the OpenAPI document and for applications mounted in another server.

In this package's server, the protocol class answers these requests before they reach ASGI.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response

from pybackend.errors import InferenceError
from pybackend.frontend.access.forwarded_headers import add_parameters
from pybackend.frontend.compression import DEFLATED_SLICE_BYTES
from pybackend.frontend.http.arrival import Arrival
from pybackend.frontend.http.content_coding import answer_coding, compressed
from pybackend.frontend.http.head_fields import HeadFields, read_fields
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.model_path import client_address, model_name, model_path, version
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.infer_plan import OutputFormat
from pybackend.protocol.json.infer_response import EncodedResponse, encode_response
from pybackend.protocol.json.pieces import PiecewiseResponse, is_large

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
    "example": {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]},
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
    "description": "the mistake and how to correct it",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}},
}
ERRORS: dict[str, Any] = dict.fromkeys(("400", "404", "500", "501", "503"), _ERROR)
"""The answers to requests that fail, for the OpenAPI document."""

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
        **ERRORS,
    },
}


def add(app: FastAPI, frontend: InferFrontend) -> None:
    """Add the infer routes to an application."""

    async def infer(request: Request) -> Response:
        return await _infer(frontend, request)

    for path in ("/v2/models/{model_name}/infer", "/v2/models/{model_name}/versions/{version:digits}/infer"):
        openapi = {**_OPENAPI, "parameters": [*model_path(path), *_OPENAPI["parameters"]]}
        app.post(
            path, tags=["inference"], summary="Run the model", name=path, response_model=None, openapi_extra=openapi
        )(infer)


async def disconnected(request: Request) -> None:
    """Return when the client disconnects. Its request must have been read to the end."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _encoded(response: InferenceResponse, output_format: OutputFormat) -> EncodedResponse:
    """The complete response; a large one is made in turns with other requests."""
    if not is_large(response, output_format):
        return encode_response(response, output_format)
    body, pieces = PiecewiseResponse(response, output_format), []
    for piece in body.json_pieces():
        pieces.append(piece)
        await asyncio.sleep(0)
    return body.collected(pieces)


async def _infer(frontend: InferFrontend, request: Request) -> Response:
    fields = read_fields(request.headers.raw)
    response, output_format = await _submitted(frontend, request, fields)
    try:
        if response.error is not None:
            raise response.error.again()
        encoded = await _encoded(response, output_format)
        coding = answer_coding(fields.accepted) if request.scope["http_version"] == "1.1" else None
        if coding is not None and encoded.body_bytes > DEFLATED_SLICE_BYTES:
            encoded = await asyncio.to_thread(compressed, encoded, coding)
        elif coding is not None:
            encoded = compressed(encoded, coding)
        # Another server's transport may keep its input, so it gets a copy and never the shared memory.
        content = b"".join((encoded.header_json, *encoded.chunks))
    finally:
        response.release()
    headers = {} if coding is None else {"content-encoding": coding.value}
    if encoded.json_length is None:
        return Response(content, media_type="application/json", headers=headers)
    headers["inference-header-content-length"] = str(encoded.json_length)
    return Response(content, media_type="application/octet-stream", headers=headers)


async def _submitted(
    frontend: InferFrontend, request: Request, fields: HeadFields
) -> tuple[InferenceResponse, OutputFormat]:
    """The model's answer to a request, and its format.

    Raises:
        InferenceError: the request is refused.
    """
    name = model_name(request)
    try:
        admission = frontend.engine.open(name, version(request), HTTP_CLIENT)
        name = admission.full_name
        forwarded = None if frontend.forwards is None else frontend.forwards.of(request.headers.raw)
        fields.check()
        with Arrival(frontend, request, admission) as arrival:
            body = frontend.body(admission, fields, arrival.content_length, arrival.drop_slowest)
            plan = await arrival.plan(body)
        if forwarded is not None:
            add_parameters(plan.request, forwarded)
        frontend.traced(admission, plan.request, fields.context, sends=False)
        response = await admission.infer(plan.request, partial(disconnected, request), plan.checked)
    except InferenceError as error:
        frontend.refused(name, error, client_address(request))
        raise
    return response, plan.output_format
