"""The routes ``generate`` (one JSON object) and ``generate_stream`` (server-sent events)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from functools import partial

from fastapi import FastAPI, Request, Response

from pybackend.engine.admission import Sender
from pybackend.engine.response_stream import ResponseStream
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.http.answer_writer import STATUS
from pybackend.frontend.http.arrival import Arrival, admitted, begin_request
from pybackend.frontend.http.body import RouteLimit
from pybackend.frontend.http.event_stream import EventStream
from pybackend.frontend.http.form_body import FORM, FormBody, is_form
from pybackend.frontend.http.infer_frontend import RouteFrontend
from pybackend.frontend.http.routes import MODEL, VERSION, add_route, disconnected, written_headers
from pybackend.inference.response import InferenceResponse
from pybackend.inference.validation import Checked
from pybackend.protocol.documents.metadata import encode_error
from pybackend.protocol.generate import MAX_BODY_BYTES, generate_document, parse_form, parse_generate
from pybackend.protocol.steps import in_turns

_SENDER = Sender("http")
_LIMIT = RouteLimit(MAX_BODY_BYTES, "use /infer for large tensors")

_WRONG_COUNT = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)

_OBJECT = {"schema": {"type": "object", "description": "members are inputs, outputs or parameters, by their names"}}
_PARTS = {
    "schema": {
        "type": "object",
        "description": "parts are inputs or parameters, by their names; those of BYTES are files",
    }
}
_EVENTS = {
    "schema": {
        "type": "string",
        "description": "an event `data: {...}` for each response, whose members are outputs and parameters by their names, and an "
        'event `data: {"error": "..."}` for a response that fails after the first',
    },
    "example": 'data: {"model_name":"story","model_version":"1","text_output":"there"}\n\n',
}


def add(app: FastAPI, frontend: RouteFrontend) -> None:
    """Add the generate routes to an application."""

    async def generate(request: Request) -> Response:
        return await _answer(frontend, request, _one_object)

    async def generate_stream(request: Request) -> Response:
        return await _answer(frontend, request, _events)

    tag, body = "inference", {"application/json": _OBJECT, FORM: _PARTS}
    for path in (MODEL, VERSION):
        answers = {"description": "the outputs", "content": {"application/json": _OBJECT}}
        add_route(
            app,
            "POST",
            f"{path}/generate",
            tag,
            "Run the model on a flat JSON object",
            generate,
            body=body,
            answers=answers,
        )
        answers = {"description": "the outputs", "content": {"text/event-stream": _EVENTS}}
        summary = "The same, with an event per response"
        add_route(app, "POST", f"{path}/generate_stream", tag, summary, generate_stream, body=body, answers=answers)


_Reply = Callable[[ResponseStream, Request, AsyncExitStack], Awaitable[Response]]


async def _answer(frontend: RouteFrontend, request: Request, reply: _Reply) -> Response:
    async with AsyncExitStack() as stack:
        return await reply(await _submitted(frontend, request, stack), request, stack)


async def _submitted(frontend: RouteFrontend, request: Request, stack: AsyncExitStack) -> ResponseStream:
    """The responses to a request, once its body has arrived."""
    with admitted(frontend, request, _SENDER) as admission:
        forwarded = frontend.forwarded(written_headers(request))
        if request.headers.get("content-encoding", "").lower() not in {"", "identity"}:
            raise InferenceError("Unsupported content-encoding, only 'identity' is supported.", ErrorCode.INVALID_ARG)
        with closing(Arrival(frontend, request)) as arrival:
            content_type = request.headers.get("content-type", "")
            if is_form(content_type):
                parse = partial(parse_form, await arrival.bounded(FormBody(content_type, _LIMIT)))
            else:
                parse = partial(parse_generate, await arrival.whole(_LIMIT))
            admission.renew()
            parsed = await in_turns(parse(admission.signature, admission.model_version, frontend.limits))
        trace = begin_request(frontend, request, admission, parsed, forwarded)
        if trace is not None:
            stack.callback(trace.sent)
        stream = ResponseStream(lambda on_response: admission.submit(parsed, on_response, Checked.HEADER))
        return await stack.enter_async_context(stream)


async def _one_object(stream: ResponseStream, request: Request, _stack: AsyncExitStack) -> Response:
    documents: list[bytes] = []
    while (response := await _next_response(stream, request)) is not None:
        try:
            if response.error is not None:
                raise response.error.again()
            documents.append(generate_document(response))
        finally:
            response.release()
        if len(documents) > 1:
            break
    if len(documents) != 1:
        raise InferenceError(_WRONG_COUNT)
    return Response(documents[0], media_type="application/json")


async def _next_response(stream: ResponseStream, request: Request) -> InferenceResponse | None:
    """The next response, None after the last one; an InferenceError if the client leaves."""
    waiting = asyncio.ensure_future(stream.next())
    leaving = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise InferenceError("the client has disconnected", ErrorCode.CANCELLED)
        return waiting.result()
    finally:
        waiting.cancel()
        leaving.cancel()


async def _events(stream: ResponseStream, request: Request, stack: AsyncExitStack) -> Response:
    response = await _next_response(stream, request)
    if response is None:
        return EventStream(_event_texts(stream, b""), stack.pop_all())
    first, status = _event(response)
    return EventStream(_event_texts(stream, first), stack.pop_all(), status)


async def _event_texts(stream: ResponseStream, first: bytes) -> AsyncIterator[bytes]:
    """The events of all responses; that of the first is made."""
    if first:
        yield first
    while (response := await stream.next()) is not None:
        yield _event(response)[0]


def _event(response: InferenceResponse) -> tuple[bytes, int]:
    """The event for a response, which is released, and the status that it stands for."""
    try:
        error, document = response.error, generate_document(response)
    except InferenceError as unsendable:
        error, document = unsendable, encode_error(unsendable.message)
    finally:
        response.release()
    return b"data: %b\n\n" % document, 200 if error is None else STATUS[error.code]
