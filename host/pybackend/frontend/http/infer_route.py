"""Infer as an ordinary ASGI route, for the OpenAPI document and for applications mounted in another server.

In this package's server, the protocol class answers these requests before they reach ASGI.
"""

import asyncio
from contextlib import closing
from functools import partial

from fastapi import FastAPI, Request, Response

from pybackend.frontend.compression import DEFLATED_SLICE_BYTES
from pybackend.frontend.http.arrival import Arrival, admitted, begin_request
from pybackend.frontend.http.content_coding import answer_coding, compressed
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_frontend import HeadFields, RouteFrontend, read_fields
from pybackend.frontend.http.routes import (
    MODEL,
    VERSION,
    add_route,
    disconnected,
    object_schema,
    written_headers,
)
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.infer_plan import OutputFormat
from pybackend.protocol.json.infer_response import EncodedResponse, encode_response
from pybackend.protocol.json.pieces import PiecewiseResponse, is_large

_JSON, _OCTETS = "application/json", "application/octet-stream"

_TENSOR = object_schema(
    "name",
    "shape",
    "datatype",
    name={"type": "string"},
    shape={"type": "array", "items": {"type": "integer", "minimum": 0}},
    datatype={"type": "string", "examples": ["FP32"]},
    data={"type": "array", "items": {}, "description": "flat or nested; absent for binary tensors"},
    parameters={"type": "object", "description": "`binary_data_size` for binary tensors"},
)
_OUTPUT = object_schema(
    "name",
    name={"type": "string"},
    parameters={"type": "object", "description": "`binary_data`: true for a binary tensor"},
)
_REQUEST = object_schema(
    "inputs",
    id={"type": "string"},
    parameters={"type": "object", "description": "custom parameters, and `binary_data_output`"},
    inputs={"type": "array", "items": _TENSOR},
    outputs={"type": "array", "items": _OUTPUT},
) | {"example": {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}}
_RESPONSE = object_schema(
    "model_name",
    "model_version",
    "outputs",
    id={"type": "string"},
    model_name={"type": "string"},
    model_version={"type": "string"},
    parameters={"type": "object"},
    outputs={"type": "array", "items": _TENSOR},
)
_BINARY = {"schema": {"type": "string", "format": "binary", "description": "a JSON part followed by binary tensors"}}
_LENGTH = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer"},
    "description": "bytes of the JSON part, if binary tensors follow it; 0 if the body is one raw tensor",
}


def add(app: FastAPI, frontend: RouteFrontend) -> None:
    """Add the infer routes to an application."""

    async def infer(request: Request) -> Response:
        return await _infer(frontend, request)

    body, reply = ({_JSON: {"schema": schema}, _OCTETS: _BINARY} for schema in (_REQUEST, _RESPONSE))
    answers = {"description": "the outputs", "content": reply}
    for path in (f"{MODEL}/infer", f"{VERSION}/infer"):
        add_route(
            app, "POST", path, "inference", "Run the model", infer, body=body, answers=answers, parameters=[_LENGTH]
        )


async def _encoded(response: InferenceResponse, output_format: OutputFormat) -> EncodedResponse:
    """The complete response; a large one is made in turns with other requests."""
    if not is_large(response, output_format):
        return encode_response(response, output_format)
    body, pieces = PiecewiseResponse(response, output_format), []
    for piece in body.json_pieces():
        pieces.append(piece)
        await asyncio.sleep(0)
    return body.collected(pieces)


async def _infer(frontend: RouteFrontend, request: Request) -> Response:
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
        return Response(content, media_type=_JSON, headers=headers)
    headers["inference-header-content-length"] = str(encoded.json_length)
    return Response(content, media_type=_OCTETS, headers=headers)


async def _submitted(
    frontend: RouteFrontend, request: Request, fields: HeadFields
) -> tuple[InferenceResponse, OutputFormat]:
    """The model's answer to a request, and its format."""
    with admitted(frontend, request, HTTP_CLIENT) as admission:
        forwarded = frontend.forwarded(written_headers(request))
        fields.check()
        with closing(Arrival(frontend, request, admission)) as arrival:
            body = frontend.body(admission, fields, arrival.content_length, arrival.flow)
            plan = await arrival.read(body)
        begin_request(frontend, request, admission, plan.request, forwarded, sends=False)
        response = await admission.infer(plan.request, partial(disconnected, request), plan.checked)
    return response, plan.output_format
