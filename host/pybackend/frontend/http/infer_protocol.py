"""The HTTP protocol object that answers infer itself, by callbacks: per request there is no task, no future and no scope."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.server import ServerState

from pybackend.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.frontend.http.errors import STATUS
from pybackend.frontend.http.infer_body import SMALL_BODY_BYTES, StreamedBody, check_encoding, check_model, decode_body
from pybackend.frontend.http.serial_protocol import MAX_KEPT_BYTES, ConnectionClock, SerialProtocol
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer
from pybackend.model.model import Model, ModelState
from pybackend.protocol.infer_plan import OutputFormat
from pybackend.protocol.infer_response import EncodedResponse, encode_response
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCache

log = logging.getLogger(__name__)

_PATH = re.compile(rb"/v2/models/([^/?]+)(?:/versions/([0-9]+))?/infer(?:\?.*)?")

MOST_KNOWN_HEADS, LARGEST_KNOWN_HEAD_BYTES = 1024, 1024
"""Bounds of what is remembered of request heads, 1 MB in all."""

_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
    b"content-length: %d\r\n\r\n"
)


class _Head(NamedTuple):
    """What the head of a small infer request says."""

    model_name: str
    model_version: str
    header_length: bytes | None
    body_bytes: int


class InferFrontend(ConnectionClock):
    """What all connections share.

    Attributes:
        engine: where requests go.
        limits: bounds of request bodies.
    """

    def __init__(self, engine: InferenceEngine, limits: BodyLimits) -> None:
        super().__init__()
        self.engine = engine
        self.limits = limits
        self._plans: dict[Model, PlanCache] = {}
        self.heads: dict[bytes, _Head] = {}

    def plans(self, model: Model) -> PlanCache:
        """The plans of requests that a model got before."""
        try:
            return self._plans[model]
        except KeyError:
            # Versions that were unloaded since the last new one came are forgotten here.
            self._plans = {known: plans for known, plans in self._plans.items() if known.state is ModelState.READY}
            return self._plans.setdefault(model, PlanCache())

    def remember(self, head: bytes, meaning: _Head) -> None:
        """Note what a head means: clients send the same one with every request, and need not have it parsed again."""
        if len(head) <= LARGEST_KNOWN_HEAD_BYTES:
            if len(self.heads) >= MOST_KNOWN_HEADS:
                self.heads.clear()
            self.heads[head] = meaning


class InferProtocol(SerialProtocol):
    """One connection."""

    def __init__(
        self, config: Config, server_state: ServerState, frontend: InferFrontend, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._frontend = frontend
        super().__init__(config, server_state, frontend, loop)

    def _start_message(self) -> None:
        super()._start_message()
        self._asked = ("", "")
        self._model: Model | None = None
        self._header_length: bytes | None = None
        self._parts: list[bytes] = []
        self._body: StreamedBody | None = None
        self._refusal: InferenceError | None = None
        self._format: OutputFormat | None = None
        self._pending: PendingRequest | None = None

    # The request

    def recognise(self, head: bytes) -> bool:
        """True for a head that was parsed before."""
        known = self._frontend.heads.get(head)
        if known is None:
            return False
        name, version, self._header_length, self._body_left = known
        self._asked = (name, version)
        try:
            self._model = self._frontend.engine.model(name, version)
            check_model(self._model)
        except InferenceError as error:
            self._refusal = error
        return True

    def claim(self) -> bool:
        """True for infer."""
        found = _PATH.fullmatch(self.url)
        if found is None or self.parser.get_method() != b"POST":
            return False
        name = unquote(found[1].decode("latin-1"), "utf-8", "replace")
        version = (found[2] or b"").decode()
        self._asked = (name, version)
        encoding = b""
        for field, value in self.headers:
            size = len(field)
            if size == 31 and field.lower() == b"inference-header-content-length":
                self._header_length = value
            elif size == 16 and field.lower() == b"content-encoding":
                encoding = value
        # Large bodies are kept from the parser, which would copy them once more.
        self._bypasses_parser = self._body_left > SMALL_BODY_BYTES
        try:
            self._model = self._frontend.engine.model(name, version)
            check_model(self._model)
            if encoding:
                check_encoding(encoding.decode("latin-1"))
            if self._chunked or self._bypasses_parser:
                length = None if self._chunked else self._body_left
                self._body = StreamedBody(self._model, self._header_length, length, self._frontend.limits)
            elif self._body_left and self._keep_alive and not self.expect_100_continue and self._head:
                self._frontend.remember(self._head, _Head(name, version, self._header_length, self._body_left))
        except InferenceError as error:
            # The body is read and dropped: a client that is still sending does not read an answer.
            self._refusal = error
        return True

    def claimed_body(self, piece: bytes) -> None:
        """Take the next bytes of the body."""
        if self._refusal is not None:
            return
        body = self._body
        if body is None:
            self._parts.append(piece)
            return
        try:
            body.feed(piece)
            if self._body_left and body.room() is not None:
                # From here on the kernel writes into the tensor's own memory.
                self.transport.set_protocol(_BodyReceiver(self, body))
        except InferenceError as error:
            self._refuse(body, error)

    def received_directly(self, body: StreamedBody, count: int) -> None:
        """The receiver has written ``count`` bytes."""
        self._active_at = self._clock.seconds
        self._body_left -= count
        body.advance(count)
        if self._body_left == 0:
            self.transport.set_protocol(self)
            self._complete_unparsed()
            return
        try:
            body.room()
        except InferenceError as error:
            self.transport.set_protocol(self)
            self._refuse(body, error)

    def _refuse(self, body: StreamedBody, error: InferenceError) -> None:
        self._refusal = error
        body.release()

    def claimed_complete(self) -> None:
        """The body is there: submit the request, or answer why not."""
        body, plan, frontend = self._body, None, self._frontend
        try:
            if self._refusal is not None:
                raise self._refusal
            model = self._model
            assert model is not None
            if model.state is not ModelState.READY:  # it was while the body began: there may be a successor
                model = frontend.engine.model(*self._asked)
                check_model(model)
            if body is None:
                whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                plan = decode_body(whole, self._header_length, model, frontend.limits, frontend.plans(model))
            else:
                plan = body.finish(model)
            self._format = plan.output_format
            self._pending = frontend.engine.submit(model, plan.request, self._on_response)
        except InferenceError as error:
            if body is not None:
                body.release()
            if plan is not None:
                plan.request.release()
            self._answer_error(error)

    # The answer

    def _on_response(self, response: InferenceResponse) -> None:
        self._pending = None
        if self._lost or self._closing:
            response.release()
            return
        if response.error is not None:
            self._answer_error(response.error)
            return
        assert self._format is not None
        try:
            encoded = encode_response(response, self._format)
        except InferenceError as error:
            response.release()
            self._answer_error(error)
            return
        except Exception:  # whatever a model's outputs do to the encoder, its client gets an answer
            log.exception("a response of model '%s' cannot be encoded", response.model_name)
            response.release()
            self._answer_error(InferenceError("internal error: see the server's log"))
            return
        if encoded.json_length is None:
            head = _JSON_HEAD % encoded.body_bytes
        else:
            head = _BINARY_HEAD % (encoded.json_length, encoded.body_bytes)
        if not self._keep_alive:
            head = head[:-2] + b"connection: close\r\n\r\n"
        if encoded.borrows_memory:
            self._write_borrowed(head, encoded, response)
        else:
            response.release()
            self.transport.write(b"".join((head, encoded.header_json, *encoded.chunks)))
            self._answered()

    def _write_borrowed(self, head: bytes, encoded: EncodedResponse, response: InferenceResponse) -> None:
        """Send views of the response's memory, and give it back only when the kernel has taken the last byte.

        The transport keeps a view of what the socket does not take; a lease freed before would carry another client's
        data by the time it is sent. With a high-water mark of 0 the transport says when nothing is left.
        """
        transport = self.transport
        transport.set_write_buffer_limits(high=0, low=0)
        chunks: list[Buffer] = [head + encoded.header_json, *encoded.chunks]
        transport.writelines(chunks)

        def drained() -> None:
            response.release()
            if not self._lost:
                transport.set_write_buffer_limits(high=MAX_KEPT_BYTES, low=0)
                self._answered()

        if transport.get_write_buffer_size() == 0:
            drained()
        else:
            self._after_drain = drained

    def _answer_error(self, error: InferenceError) -> None:
        self._write_error(STATUS[error.code], error.message)
        self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client, or we, closed the connection: nobody waits for what is queued."""
        super().connection_lost(exc)
        if self._pending is not None:
            self._pending.cancel()
        if self._body is not None and not self._message_done:
            self._body.release()


class _BodyReceiver(asyncio.BufferedProtocol):
    """Stands in for the connection's protocol while the bytes of large tensors arrive."""

    def __init__(self, owner: InferProtocol, body: StreamedBody) -> None:
        self._owner = owner
        self._body = body

    def get_buffer(self, sizehint: int) -> Any:
        return self._body.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._owner.received_directly(self._body, nbytes)

    def eof_received(self) -> None:
        self._owner.eof_received()

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)
