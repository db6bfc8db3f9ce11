"""OpenAI's routes: chats, completions, embeddings and the list of models, below ``/v1`` and ``/openai/v1``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response

from pybackend.engine.admission import Sender
from pybackend.engine.engine import ModelAdmission
from pybackend.engine.response_stream import ResponseStream
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.access.forwarded_headers import add_parameters
from pybackend.frontend.http.arrival import Arrival
from pybackend.frontend.http.body import RouteLimit
from pybackend.frontend.http.event_stream import EventStream
from pybackend.frontend.http.infer_frontend import RouteFrontend, read_fields
from pybackend.frontend.http.routes import (
    add_route,
    client_address,
    disconnected,
    model_name,
    object_schema,
    written_headers,
)
from pybackend.frontend.request_log import RECORD, begin_trace
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.protocol.steps import Steps, in_turns
from pybackend_addons.openai.protocol.answer import (
    DONE,
    MOST_ANSWER_BYTES,
    Choice,
    Piece,
    TextAnswer,
    embedding_documents,
    embedding_rows,
    error_answer,
    model_document,
    token_count,
)
from pybackend_addons.openai.protocol.request import (
    MAX_BODY_BYTES,
    EmbeddingRequest,
    OpenAiError,
    TextRequest,
    embedding_requests,
    parse_embedding_request,
    parse_text_request,
    text_requests,
    wrong_dimensions_error,
)
from pybackend_addons.openai.tensors import NEEDED_FOR_EMBEDDINGS, NEEDED_FOR_TEXTS, openai_tensors_in

_SENDER = Sender("http")
_LIMIT = RouteLimit(MAX_BODY_BYTES)
_JSON = "application/json"
_AT_ONCE = 16
"""Requests of one list of texts to embed that wait in the model's queue at a time."""

_PIECE_BYTES = 100
"""The room that a piece of an answer takes beside its contents."""

_T = TypeVar("_T")

_MODEL_MEMBER = {"model": {"type": "string"}}
_STREAM_MEMBER = {"stream": {"type": "boolean", "description": "true for events"}}
_CHAT = object_schema(
    "model", "messages", **_MODEL_MEMBER, **_STREAM_MEMBER, messages={"type": "array", "items": {"type": "object"}}
)
_COMPLETION = object_schema("model", "prompt", **_MODEL_MEMBER, **_STREAM_MEMBER, prompt={"type": "string"})
_EMBEDDING = object_schema("model", "input", **_MODEL_MEMBER, input={"type": "string"})
_CHUNKS = {
    "schema": {
        "type": "string",
        "description": 'with `stream`: an event `data: {...}` for each chunk, `data: {"error": {...}}` if the model fails after the '
        "first one, and `data: [DONE]` at the end",
    }
}
_TEXTS = {
    "description": "the texts",
    "content": {_JSON: {"schema": {"type": "object"}}, "text/event-stream": _CHUNKS},
}
_ERROR_MEMBERS = {name: {"type": ["string", "null"]} for name in ("message", "type", "param", "code")}
_ERROR = object_schema(error=object_schema(**_ERROR_MEMBERS))


def add(app: FastAPI, frontend: RouteFrontend, prefixes: Sequence[str]) -> None:
    """Add the routes to an application, below each of these paths."""
    routes = OpenAiRoutes(frontend)
    for prefix in prefixes:
        for method, path, summary, answer, schema in (
            ("POST", "chat/completions", "Answer a chat, as OpenAI's API does", routes.chat, _CHAT),
            ("POST", "completions", "Continue texts, as OpenAI's API does", routes.completion, _COMPLETION),
            ("POST", "embeddings", "Embed texts, as OpenAI's API does", routes.embeddings, _EMBEDDING),
            ("GET", "models", "The models that OpenAI's routes serve", routes.models, None),
            ("GET", "models/{model_name:path}", "A model that OpenAI's routes serve", routes.model, None),
        ):
            body = None if schema is None else {_JSON: {"schema": schema}}
            answers = _TEXTS if path.endswith("completions") else None
            route = _in_openai_form(answer)
            add_route(app, method, prefix + path, "openai", summary, route, body=body, answers=answers, errors=_ERROR)


def _in_openai_form(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        try:
            return await answer(request)
        except InferenceError as error:
            status, body = error_answer(error)
            return Response(body, status, media_type=_JSON)

    return route


class OpenAiRoutes:
    """The answers to requests."""

    def __init__(self, frontend: RouteFrontend) -> None:
        self._frontend = frontend
        self._engine = frontend.engine
        self._created = int(time.time())

    async def models(self, _request: Request) -> Response:
        """The list of models."""
        names = [name for name in self._engine.serving_names if self._serves(name)]
        documents = [model_document(name, self._created) for name in names]
        return Response(msgspec.json.encode({"object": "list", "data": documents}), media_type=_JSON)

    async def model(self, request: Request) -> Response:
        """One model."""
        name = model_name(request)
        if not self._serves(name):
            raise self._unknown(name)
        return Response(msgspec.json.encode(model_document(name, self._created)), media_type=_JSON)

    async def chat(self, request: Request) -> Response:
        """The next message of a chat."""
        return await self._texts(request, is_chat=True)

    async def completion(self, request: Request) -> Response:
        """The continuations of texts."""
        return await self._texts(request, is_chat=False)

    async def embeddings(self, request: Request) -> Response:
        """The embeddings of texts."""
        asked = await self._asked(request, parse_embedding_request)
        rows, tokens = await _unless_left(request, self._embedded(request, asked))
        parts = []
        for part in embedding_documents(asked.model, rows, tokens, is_base64=asked.is_base64):
            parts.append(part)
            await asyncio.sleep(0)
        return Response(b"".join(parts), media_type=_JSON)

    def _serves(self, name: str) -> bool:
        try:
            return openai_tensors_in(self._engine.describe(name).signature) is not None
        except InferenceError:
            return False

    def _unknown(self, name: str) -> OpenAiError:
        return OpenAiError(
            f"model '{name}' does not exist here: GET /v1/models lists those that OpenAI's routes serve",
            "model",
            ErrorCode.NOT_FOUND,
            "model_not_found",
        )

    async def _asked(self, request: Request, parse: Callable[[bytes], Steps[_T]]) -> _T:
        """A request's body, parsed."""
        with self._counted(request), closing(Arrival(self._frontend, request)) as arrival:
            return await in_turns(parse(await arrival.whole(_LIMIT)))

    @contextmanager
    def _counted(self, request: Request, name: str = "") -> Iterator[None]:
        """Counts an error within as a refusal, perhaps by the model of this name."""
        try:
            yield
        except InferenceError as error:
            self._frontend.refused(name, error, client_address(request))
            raise

    async def _made(self, request: Request, make: Steps[list[InferenceRequest]]) -> list[InferenceRequest]:
        """The requests for the model, with the headers that are forwarded."""
        with self._counted(request):
            made = await in_turns(make)
            forwarded = self._frontend.forwarded(written_headers(request))
        if forwarded is not None:
            for each in made:
                add_parameters(each, forwarded)
        return made

    def _open(self, request: Request, asked: TextRequest | EmbeddingRequest) -> ModelAdmission:
        """The admission of one inference request; it is counted if there is none."""
        name = asked.model
        with self._counted(request, name):
            admission = self._engine.open(name, "", _SENDER)
            if openai_tensors_in(admission.signature) is None:
                needed = NEEDED_FOR_TEXTS if isinstance(asked, TextRequest) else NEEDED_FOR_EMBEDDINGS
                raise OpenAiError(
                    f"model '{name}' has no tensors that OpenAI's routes know: name them by its parameters, {needed}, or ask "
                    f"/v2/models/{name}/infer",
                    "model",
                )
        if RECORD in request.scope:
            request.scope[RECORD].asks(admission.model_name, admission.model_version)
        return admission

    # Texts

    async def _texts(self, request: Request, *, is_chat: bool) -> Response:
        asked = await self._asked(request, partial(parse_text_request, is_chat=is_chat))
        async with AsyncExitStack() as stack:
            texts = _Texts(asked, await self._submitted(request, asked, stack))
            if not asked.streams:
                return Response(await _unless_left(request, texts.whole()), media_type=_JSON)
            events = texts.events()
            stack.push_async_callback(events.aclose)
            first = await _unless_left(request, _next_of(events))
            return EventStream(_chained(first, events), stack.pop_all())

    async def _submitted(self, request: Request, asked: TextRequest, stack: AsyncExitStack) -> list[_Growing]:
        """The streams of all requested texts."""
        admission = self._open(request, asked)
        tensors = openai_tensors_in(admission.signature)
        assert tensors is not None
        made = await self._made(request, text_requests(asked, admission.signature, admission.model_version))
        growing = []
        for index, each in enumerate(made):
            stream = ResponseStream(self._submission(request, admission, each, stack))
            with self._counted(request, admission.full_name):
                await stack.enter_async_context(stream)
            growing.append(_Growing(stream, Choice(index, asked, tensors)))
            if index + 1 < len(made):
                admission = self._open(request, asked)
        return growing

    def _submission(
        self, request: Request, admission: ModelAdmission, made: InferenceRequest, stack: AsyncExitStack
    ) -> Callable[[OnResponse], PendingRequest]:
        context = read_fields(request.headers.raw).context
        trace = begin_trace(self._engine.tracer, made, admission.full_name, "HTTP", context)
        if trace is not None:
            stack.callback(trace.sent)
        return lambda on_response: admission.submit(made, on_response)

    # Embeddings

    async def _embedded(self, request: Request, asked: EmbeddingRequest) -> tuple[list[Any], int]:
        """The embeddings of all texts, in their order, and the number of tokens that the model tells."""
        admission = self._open(request, asked)
        signature = admission.signature
        tensors = openai_tensors_in(signature)
        assert tensors is not None
        name, count_name = tensors.embedding, tensors.prompt_tokens
        made = await self._made(request, embedding_requests(asked, signature, admission.model_version))
        places = asyncio.Semaphore(_AT_ONCE)

        async def rows_of(each: InferenceRequest) -> tuple[list[Any], int]:
            async with places:
                count = each.inputs[0].shape[0] if signature.max_batch_size else 1
                response = await self._open(request, asked).infer(each)
                try:
                    if response.error is not None:
                        raise response.error.again()
                    return embedding_rows(response, name, count), token_count(response, count_name) or 0
                finally:
                    response.release()

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(rows_of(each)) for each in made]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = [task.result() for task in tasks]
        rows = [row for rows, _ in found for row in rows]
        wrong = [len(row) for row in rows if asked.dimensions not in {None, len(row)}]
        if wrong:
            raise wrong_dimensions_error(asked.model, wrong[0])
        return rows, sum(tokens for _, tokens in found)


class _Growing:
    """A text, and the stream of responses that it grows by."""

    def __init__(self, stream: ResponseStream, choice: Choice) -> None:
        self.choice = choice
        self._stream = stream

    async def next(self) -> Piece | None:
        """The next piece; None at the end. Raises InferenceError: the model has failed."""
        choice = self.choice
        if choice.ended:
            return None
        response = await self._stream.next()
        if response is None:
            return choice.end()
        try:
            piece = _taken(choice, response)
        finally:
            response.release()
        if choice.ended:
            self._stream.close()
        return piece


def _taken(choice: Choice, response: InferenceResponse) -> Piece:
    if response.error is not None:
        raise response.error.again()
    return choice.take(response)


class _Texts:
    """All the texts of one answer, as they grow."""

    def __init__(self, asked: TextRequest, growing: Sequence[_Growing]) -> None:
        self._asked = asked
        self._growing = growing
        self._answer = TextAnswer(asked)

    async def whole(self) -> bytes:
        """The answer without a stream."""
        pieces: list[list[Piece]] = [[] for _ in self._growing]
        length = 0
        async for index, piece in self._pieces():
            pieces[index].append(piece)
            length += _PIECE_BYTES + piece.nbytes
            if length > MOST_ANSWER_BYTES:
                raise InferenceError(f"the model's answer exceeds {MOST_ANSWER_BYTES} bytes: ask for a stream")
        return self._answer.whole([each.choice for each in self._growing], pieces)

    async def events(self) -> AsyncGenerator[bytes]:
        """The events of a stream; an error after the first one is an event, too."""
        has_begun = False
        try:
            async for index, piece in self._pieces():
                if piece.says_something or not has_begun:
                    has_begun = True
                    yield self._answer.event(index, piece)
            if self._asked.wants_usage:
                yield self._answer.usage_event([each.choice for each in self._growing])
            yield DONE
        except InferenceError as error:
            if not has_begun:
                raise
            yield b"data: %b\n\n" % error_answer(error)[1]

    async def _pieces(self) -> AsyncGenerator[tuple[int, Piece]]:
        """The next piece of any text, with the text's number."""
        if len(self._growing) == 1:
            while (piece := await self._growing[0].next()) is not None:
                yield 0, piece
            return
        waiting = {asyncio.ensure_future(each.next()): index for index, each in enumerate(self._growing)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    index, next_piece = waiting.pop(task), task.result()
                    if next_piece is not None:
                        waiting[asyncio.ensure_future(self._growing[index].next())] = index
                        yield index, next_piece
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _next_of(events: AsyncGenerator[bytes]) -> bytes:
    return await anext(events)


async def _chained(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for event in rest:
        yield event


async def _unless_left(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of work that ends when the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise InferenceError("the client has disconnected", ErrorCode.CANCELLED)
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
