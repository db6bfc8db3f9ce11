"""Infer as an ordinary ASGI route, for the OpenAPI document and for applications mounted in another server.

In this package's server, the protocol class answers these requests before they reach ASGI.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders, add_parameters
from pybackend.frontend.compression import DEFLATED_SLICE_BYTES
from pybackend.frontend.http.compressed_body import Body, CompressedBody
from pybackend.frontend.http.content_coding import answer_coding, compressed, request_coding
from pybackend.frontend.http.infer_body import HTTP_CLIENT, StreamedBody
from pybackend.frontend.http.model_path import client_address, context_fields, model_name, model_path, version
from pybackend.frontend.traced import begin_trace, is_chosen
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.infer_plan import OutputFormat
from pybackend.protocol.infer_response import EncodedResponse, encode_response
from pybackend.protocol.json_pieces import PiecewiseResponse, is_large
from pybackend.protocol.limits import BodyLimits

_LONGEST_LENGTH_DIGITS = 18

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


def add(app: FastAPI, engine: InferenceEngine, limits: BodyLimits, forwards: ForwardedHeaders | None = None) -> None:
    """Add the infer routes to an application."""

    async def infer(request: Request) -> Response:
        return await _infer(engine, limits, forwards, request)

    for path in ("/v2/models/{model_name}/infer", "/v2/models/{model_name}/versions/{version:digits}/infer"):
        openapi = {**_OPENAPI, "parameters": [*model_path(path), *_OPENAPI["parameters"]]}
        app.post(
            path, tags=["inference"], summary="Run the model", name=path, response_model=None, openapi_extra=openapi
        )(infer)


async def disconnected(request: Request) -> None:
    """Return when the client disconnects. Its request must have been read to the end."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _done(body: Body) -> None:
    """Do the pending work, in turns with other requests."""
    work = body.work
    if work is not None:
        for _ in work:
            await asyncio.sleep(0)
        body.work = None


async def _encoded(response: InferenceResponse, output_format: OutputFormat) -> EncodedResponse:
    """The complete response; a large one is made in turns with other requests."""
    if not is_large(response, output_format):
        return encode_response(response, output_format)
    body, pieces = PiecewiseResponse(response, output_format), []
    for piece in body.json_pieces():
        pieces.append(piece)
        await asyncio.sleep(0)
    return body.collected(pieces)


def _field(request: Request, name: str) -> bytes:
    """The value of a field; several of one name joined by commas."""
    return ",".join(request.headers.getlist(name)).encode("latin-1")


def _content_length(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_LENGTH_DIGITS:
        raise InferenceError("Content-Length is not a number of bytes", ErrorCode.INVALID_ARG)
    return int(text)


async def _infer(
    engine: InferenceEngine, limits: BodyLimits, forwards: ForwardedHeaders | None, request: Request
) -> Response:
    try:
        response, output_format = await _submitted(engine, limits, forwards, request)
    except InferenceError as error:
        engine.refusals.add_error(HTTP_CLIENT.protocol, model_name(request), error, client_address(request))
        raise
    try:
        if response.error is not None:
            raise response.error.again()
        encoded = await _encoded(response, output_format)
        coding = answer_coding(_field(request, "accept-encoding"))
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
    engine: InferenceEngine, limits: BodyLimits, forwards: ForwardedHeaders | None, request: Request
) -> tuple[InferenceResponse, OutputFormat]:
    """The model's answer to a request, and its format.

    Raises:
        InferenceError: the request is refused.
    """
    admission = engine.open(model_name(request), version(request), HTTP_CLIENT)
    forwarded = None if forwards is None else forwards.of(request.headers.raw)
    coding = request_coding(_field(request, "content-encoding"))
    length = request.headers.get("content-length")
    header_length = request.headers.get("inference-header-content-length")
    streamed = StreamedBody(
        admission,
        None if header_length is None else header_length.encode("latin-1"),
        None if length is None or coding is not None else _content_length(length),
        limits,
    )
    body = streamed if coding is None else CompressedBody(streamed, coding, limits)
    try:
        async for piece in request.stream():
            if piece:
                body.feed(piece)
                await _done(body)
        body.complete()
        await _done(body)
        plan = body.finish()
    except BaseException:
        body.release()
        raise
    if forwarded is not None:
        add_parameters(plan.request, forwarded)
    fields = context_fields(request)
    if is_chosen(engine.tracer, admission.full_name, fields):
        begin_trace(engine.tracer, plan.request, admission.full_name, "HTTP", fields=fields, sends=False)
    response = await admission.infer(plan.request, partial(disconnected, request), plan.checked)
    return response, plan.output_format
