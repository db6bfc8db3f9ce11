"""One call: the messages of a stream in both directions, its deadline and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from pybackend.errors import InferenceError
from pybackend.frontend.grpc.errors import HEAD, OK_TRAILERS, CallError, trailers, trailers_only
from pybackend.frontend.grpc.framing import PREFIX, MessageReader
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead
from pybackend.http2 import ErrorCode, Fields, HeaderBlock, RemoteProtocolError, Stream
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc_response import EncodedMessage
from pybackend.protocol.grpc_status import GrpcStatus

log = logging.getLogger(__name__)


class CallConnection(Protocol):
    """A connection, as its calls see it.

    Attributes:
        frontend: state shared by all connections.
        loop: the event loop.
        address: the client's, for logs.
        is_secure: the connection has TLS: its transport gets copies of memory that is used again.
    """

    frontend: GrpcFrontend
    loop: asyncio.AbstractEventLoop
    address: str
    is_secure: bool

    def flush_soon(self) -> None:
        """Write what was sent at the end of this loop turn."""

    def when_written(self, release: Callable[[], None]) -> None:
        """Call this once the transport holds no views of memory that it has been given."""

    def keep(self, call: Call, held_bytes: int) -> int:
        """Count the bytes of an incomplete message; returns how many of them were not counted before.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached.
        """

    def unkeep(self, call: Call, message_bytes: int) -> int:
        """Stop counting a message; returns how many of its bytes have not been given back to the client."""

    def call_ended(self, call: Call, held_bytes: int) -> None:
        """Forget a call's bytes, and give the client back those that were not."""


class Call:
    """A call; subclasses answer its messages.

    Attributes:
        connection: the client's connection.
        stream: the answer goes there.
        head: the call's head.
        half_closed: the client sends no more messages.
        is_over: the end was sent, or the call was cancelled.
    """

    __slots__ = ("_reader", "_timer", "_unreleased", "connection", "half_closed", "head", "is_over", "stream")

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead) -> None:
        self.connection = connection
        self.stream = stream
        self.head = head
        self.half_closed = False
        self.is_over = False
        self._reader = MessageReader(head.encoding, connection.frontend.limits)
        self._unreleased: list[InferenceResponse] = []
        self._timer: asyncio.TimerHandle | None = None
        if head.timeout_s is not None:
            self._timer = connection.loop.call_later(head.timeout_s, self._deadline_passed)

    # For subclasses

    def on_message(self, message: bytes) -> None:
        """Called with each message; errors end the call.

        Raises:
            CallError, InferenceError: the call ends with this status.
        """
        raise NotImplementedError

    def on_half_close(self) -> None:
        """Called after the last message."""

    def on_cancelled(self) -> None:
        """Called when nobody waits for the answer any more."""

    def accepts_messages(self) -> bool:
        """False while further messages must wait; :meth:`go_on` then continues."""
        return True

    def on_writable(self) -> None:
        """Called when the client has taken everything that was sent."""

    # The client's side

    def on_data(self, payload: bytes | memoryview, ended: bool) -> None:
        """A piece of the client's messages."""
        if self.is_over:
            self.stream.give_back(len(payload))
            return
        self.half_closed = ended
        self._reader.feed(payload)
        self.go_on()

    def on_trailers(self, _trailers: Fields) -> None:
        """The client's messages have ended."""
        self.half_closed = True
        self.go_on()

    def go_on(self) -> None:
        """Answer the messages that have arrived."""
        if self.is_over:
            return
        reader = self._reader
        try:
            while self.accepts_messages():
                held = reader.held_bytes
                message = reader.next()
                if message is None:
                    self._wait_for_more()
                    return
                self.stream.give_back(self.connection.unkeep(self, held - reader.held_bytes))
                self.on_message(message)
                if self.is_over:
                    return
        except InferenceError as error:
            self.fail(CallError.of(error))
        except CallError as error:
            self.fail(error)
        except Exception:  # the client gets an answer, whatever it sent
            log.exception("A gRPC call to %s failed", self.head.path)
            self.fail(CallError(GrpcStatus.INTERNAL, "internal error: see the server's log"))

    def _wait_for_more(self) -> None:
        held = self._reader.held_bytes
        if self.half_closed:
            if held:
                raise CallError(
                    GrpcStatus.INTERNAL, f"the call ended in the middle of a message: {held} bytes are left"
                )
            self.on_half_close()
        elif held:
            # The rest of this message may exceed the window, so what has arrived is given back and counted.
            self.stream.give_back(self.connection.keep(self, held))

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that have arrived and were not answered yet."""
        return self._reader.held_bytes

    def on_reset(self, _code: int, error: RemoteProtocolError | None) -> None:
        """The client has cancelled the call, or its connection has ended."""
        if error is not None:
            self.connection.frontend.malformed(str(error), self.connection.address)
        self._end()
        self.release_sent()
        self.on_cancelled()

    def _deadline_passed(self) -> None:
        self._timer = None
        if not self.is_over:
            self.on_cancelled()
            self.fail(CallError(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            self.connection.flush_soon()

    # The server's side

    def send(self, message: bytes) -> None:
        """Send a small message."""
        self._send_head()
        self.stream.send_data(PREFIX.pack(0, len(message)) + message)

    def send_encoded(self, message: EncodedMessage, response: InferenceResponse) -> None:
        """Send a message, and release the response once its memory is no longer needed."""
        self._send_head()
        pieces = message.pieces
        self.stream.send_data(b"".join((PREFIX.pack(0, message.nbytes), pieces[0])))
        for piece in pieces[1:]:
            self.stream.send_data(bytes(piece) if self.connection.is_secure else memoryview(piece))
        if message.borrows_memory:
            self._unreleased.append(response)
            if not self.stream.waiting_bytes:
                self.release_sent()
        else:
            response.release()

    def answer(self, message: EncodedMessage, response: InferenceResponse) -> None:
        """Send the only message of a successful call, and end it."""
        if message.borrows_memory:
            self.send_encoded(message, response)
            self.finish()
            return
        self._end()
        body = b"".join((PREFIX.pack(0, message.nbytes), *message.pieces))
        response.release()
        self.stream.respond(HEAD, body, OK_TRAILERS)
        self._stop_receiving()

    def reply(self, message: bytes) -> None:
        """Send the only message of a successful call, and end it."""
        self._end()
        self.stream.respond(HEAD, PREFIX.pack(0, len(message)) + message, OK_TRAILERS)
        self._stop_receiving()

    def refuse(self, answer: HeaderBlock) -> None:
        """End a call that cannot be served with a head and nothing else."""
        self._end()
        self.stream.send_headers(answer, end=True)
        self._stop_receiving()

    def finish(self) -> None:
        """End a successful call."""
        self._end()
        self._send_head()
        self.stream.send_trailers(OK_TRAILERS)
        self._stop_receiving()

    def fail(self, error: CallError) -> None:
        """End the call with a status."""
        if self.is_over:
            return
        self._end()
        if self.stream.head_sent:
            self.stream.send_trailers(trailers(error.status, error.message))
        else:
            self.stream.send_headers(trailers_only(error.status, error.message), end=True)
        self._stop_receiving()

    def on_drained(self) -> None:
        """Everything that was sent has been handed to the transport."""
        self.release_sent()
        if not self.is_over:
            self.on_writable()

    def release_sent(self) -> None:
        """Release responses whose memory was sent, as soon as the transport has let it go."""
        unreleased, self._unreleased = self._unreleased, []
        for response in unreleased:
            self.connection.when_written(response.release)

    def _send_head(self) -> None:
        if not self.stream.head_sent:
            self.stream.send_headers(HEAD)

    def _stop_receiving(self) -> None:
        """Ask a client that still sends to stop (RFC 9113 section 8.1)."""
        if not self.half_closed and not self.stream.waiting_bytes:
            self.stream.reset(ErrorCode.NO_ERROR)

    def _end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.connection.call_ended(self, self._reader.held_bytes)
