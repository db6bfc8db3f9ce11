"""The routes ``generate`` (one JSON object) and ``generate_stream`` (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pybackend.engine.admission import Sender
from pybackend.engine.engine import InferenceEngine
from pybackend.engine.response_stream import ResponseStream
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.http.infer_route import ERRORS, disconnected
from pybackend.frontend.http.model_path import client_address, context_fields, model_name, model_path, version
from pybackend.frontend.http.watched_app import EXCHANGE
from pybackend.frontend.traced import begin_trace, is_chosen
from pybackend.protocol.generate import MAX_BODY_BYTES, generate_document, parse_generate
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.metadata import encode_error

_SENDER = Sender("http")

_WRONG_COUNT = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)

_OBJECT = {"schema": {"type": "object", "description": "members are inputs, outputs or parameters, by their names"}}
_EVENTS = {"schema": {"type": "string", "description": "an event `data: {...}` for each response"}}


def add(app: FastAPI, engine: InferenceEngine, limits: BodyLimits) -> None:
    """Add the generate routes to an application."""

    async def generate(request: Request) -> Response:
        return await _answer(engine, limits, request, _one_object)

    async def generate_stream(request: Request) -> Response:
        return await _answer(engine, limits, request, _events)

    for prefix in ("/v2/models/{model_name}", "/v2/models/{model_name}/versions/{version:digits}"):
        for name, summary, route, reply in (
            ("generate", "Run the model on a flat JSON object", generate, {"application/json": _OBJECT}),
            (
                "generate_stream",
                "The same, with an event per response",
                generate_stream,
                {"text/event-stream": _EVENTS},
            ),
        ):
            path = f"{prefix}/{name}"
            openapi: dict[str, Any] = {
                "parameters": model_path(path),
                "requestBody": {"required": True, "content": {"application/json": _OBJECT}},
                "responses": {
                    "200": {"description": "the outputs", "content": reply},
                    **ERRORS,
                },
            }
            app.post(path, tags=["inference"], summary=summary, name=path, response_model=None, openapi_extra=openapi)(
                route
            )


_Reply = Callable[[ResponseStream, Request, AsyncExitStack], Awaitable[Response]]


async def _answer(engine: InferenceEngine, limits: BodyLimits, request: Request, reply: _Reply) -> Response:
    async with AsyncExitStack() as stack:
        try:
            stream = await stack.enter_async_context(await _submitted(engine, limits, request, stack))
        except InferenceError as error:
            engine.refusals.add_error(_SENDER.protocol, model_name(request), error, client_address(request))
            raise
        return await reply(stream, request, stack)


async def _submitted(
    engine: InferenceEngine, limits: BodyLimits, request: Request, stack: AsyncExitStack
) -> ResponseStream:
    """The responses to a request, once its body has arrived.

    Raises:
        InferenceError: the request is refused.
    """
    admission = engine.open(model_name(request), version(request), _SENDER)
    if request.headers.get("content-encoding", "").lower() not in {"", "identity"}:
        raise InferenceError("Unsupported content-encoding, only 'identity' is supported.", ErrorCode.INVALID_ARG)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise InferenceError(
                f"the body exceeds {MAX_BODY_BYTES} bytes, the most that generate accepts: use /infer for large tensors",
                ErrorCode.INVALID_ARG,
            )
    admission.renew()
    parsed = parse_generate(bytes(body), admission.signature, admission.model_version, limits)
    if EXCHANGE in request.scope:
        request.scope[EXCHANGE].asks(admission.model_name, admission.model_version, parsed.id)
    fields = context_fields(request)
    if is_chosen(engine.tracer, admission.full_name, fields):
        trace = begin_trace(engine.tracer, parsed, admission.full_name, "HTTP", fields=fields)
        if trace is not None:
            stack.callback(trace.sent)
    return ResponseStream(lambda on_response: admission.submit(parsed, on_response))


async def _one_object(stream: ResponseStream, request: Request, _stack: AsyncExitStack) -> Response:
    documents: list[bytes] = []
    while (document := await _next_document(stream, request)) is not None:
        documents.append(document)
        if len(documents) > 1:
            break
    if len(documents) != 1:
        raise InferenceError(_WRONG_COUNT)
    return Response(documents[0], media_type="application/json")


async def _next_document(stream: ResponseStream, request: Request) -> bytes | None:
    """The next response as JSON; None after the last one.

    Raises:
        InferenceError: the response is an error, or cannot be sent as JSON; or the client has disconnected.
    """
    waiting = asyncio.ensure_future(stream.next())
    leaving = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise InferenceError("the client has disconnected", ErrorCode.CANCELLED)
        response = waiting.result()
        if response is None:
            return None
        try:
            if response.error is not None:
                raise response.error.again()
            return generate_document(response)
        finally:
            response.release()
    finally:
        waiting.cancel()
        leaving.cancel()


async def _events(stream: ResponseStream, request: Request, stack: AsyncExitStack) -> Response:
    first = await _next_document(stream, request)
    return _EventStream(stream, first, stack.pop_all())


class _EventStream(StreamingResponse):
    """Server-sent events.

    Args:
        stream: the responses.
        first: the first one as JSON, None if there is none.
        life: closes the stream.
    """

    media_type = "text/event-stream"

    def __init__(self, stream: ResponseStream, first: bytes | None, life: AsyncExitStack) -> None:
        self._life = life
        super().__init__(_event_texts(stream, first))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._life:
            await super().__call__(scope, receive, send)


async def _event_texts(stream: ResponseStream, first: bytes | None) -> AsyncIterator[bytes]:
    document = first
    while document is not None:
        yield b"data: %b\n\n" % document
        response = await stream.next()
        if response is None:
            return
        try:
            document = generate_document(response)
        except InferenceError as error:
            document = encode_error(error.message)
        finally:
            response.release()
