"""One call: the messages of a stream in both directions, its deadline and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from pybackend.engine.admission import Admission
from pybackend.errors import InferenceError
from pybackend.frontend.grpc.arriving_request import LARGE_MESSAGE_BYTES, ArrivingRequest
from pybackend.frontend.grpc.call_connection import CallConnection
from pybackend.frontend.grpc.call_record import answer_head, end_record, status_name
from pybackend.frontend.grpc.errors import (
    HEAD,
    INTERNAL,
    OK_TRAILERS,
    SHUTTING_DOWN,
    CallError,
    trailers,
    trailers_only,
)
from pybackend.frontend.grpc.framing import LARGEST_MESSAGE_BYTES, PREFIX, MessageReader, whole_message
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.http2 import ErrorCode, Fields, RemoteProtocolError, Stream
from pybackend.frontend.request_log import RequestRecord
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc.response import EncodedMessage
from pybackend.protocol.grpc.status import GrpcStatus

log = logging.getLogger(__name__)


class Call:
    """A call; subclasses answer its messages.

    Attributes:
        connection: the client's connection.
        stream: the answer goes there.
        head: the call's head.
        half_closed: the client sends no more messages.
        is_over: the end was sent, or the call was cancelled.
        is_reading: messages that have arrived are read in slices: a large one, or many; further ones must wait.
    """

    # Defaults of the class, which most calls never change: making a call is a good part of a small one.
    half_closed = False
    is_over = False
    is_reading = False
    _reader: MessageReader | None = None
    _arriving: ArrivingRequest | None = None
    _inflates = False
    _received_bytes = _returned_bytes = _counted_bytes = 0
    _answered_bytes = 0
    """Size of the message that is being answered, if a subclass keeps it meanwhile and it is large."""
    _received_then = -1
    unreleased: Sequence[InferenceResponse] = ()
    _timer: asyncio.TimerHandle | None = None
    _record: RequestRecord | None = None

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead) -> None:
        self.connection = connection
        self.stream = stream
        self.head = head
        request_log = connection.frontend.request_log
        if request_log.on:
            self._record = request_log.begin("grpc", connection.address, b"POST", head.path.encode("latin-1"))
        if head.timeout_s is not None:
            self._timer = connection.loop.call_later(head.timeout_s, self._deadline_passed)

    # For subclasses

    def on_message(self, message: bytes) -> None:
        """Called with each message; errors end the call.

        Raises:
            CallError, InferenceError: the call ends with this status.
        """
        raise NotImplementedError

    refusal: CallError | None = None
    """The error for larger messages than :attr:`most_bytes`; None for the usual one."""

    most_bytes = LARGEST_MESSAGE_BYTES
    """The limit of a message, which is refused before it has arrived."""
    receives_large = False
    """Large messages are infer requests, which :meth:`begin_large` receives; others are collected."""

    def begin_large(self, nbytes: int) -> ArrivingRequest:
        """Called with the size of a large message when its first bytes have arrived; raises as :meth:`on_message` does."""
        raise NotImplementedError

    def on_arrived(self, arrived: ArrivingRequest) -> None:
        """Called when the whole of a large message has arrived; raises as :meth:`on_message` does."""
        raise NotImplementedError

    def on_half_close(self) -> None:
        """Called after the last message."""

    def on_cancelled(self) -> None:
        """Called when nobody waits for the answer any more: the client has gone, or the call has failed."""

    def is_working(self) -> bool:
        """True while a message that has arrived is being answered."""
        return False

    def needs_message(self) -> bool:
        """True if there can be no answer before the client sends a message."""
        return False

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
        size = len(payload)
        self._received_bytes += size
        message = None
        if self._arriving is not None:
            payload = self._feed(self._arriving, payload)
        elif self._reader is None:
            message = whole_message(payload) if self.accepts_messages() else None
            if message is not None:
                self._returned_bytes += size
                self.stream.give_back(size)
        if message is None and payload:
            if self._reader is None:
                limits = self.connection.frontend.limits
                self._reader = MessageReader(self.head.encoding, limits, self.most_bytes, self.refusal)
            self._reader.feed(payload)
        self.go_on(message)

    @staticmethod
    def _feed(arriving: ArrivingRequest, payload: bytes | memoryview) -> bytes | memoryview:
        """Give a large message its next bytes; returns those that follow it."""
        rest = payload[arriving.left_bytes :]
        arriving.feed(payload[: arriving.left_bytes] if rest else payload)
        return rest

    @property
    def room(self) -> memoryview | None:
        """Memory for the next bytes of the client, if they belong to a large tensor."""
        return None if self._arriving is None else self._arriving.room

    def stored(self, count: int) -> None:
        """The next bytes of the client were written to :attr:`room`."""
        assert self._arriving is not None
        self._received_bytes += count
        self._arriving.stored(count)
        self.go_on()

    def on_trailers(self, _trailers: Fields) -> None:
        """The client's messages have ended."""
        self.half_closed = True
        self.go_on()

    def go_on(self, message: bytes | None = None) -> None:
        """Answer a message that has arrived whole, and those that the reader has."""
        if self.is_over:
            return
        try:
            if message is not None:
                self.on_message(message)
            self._read()
        except InferenceError as error:
            self.connection.frontend.refused(error, self.connection.address)
            self.fail(CallError.of(error))
        except CallError as error:
            self.connection.frontend.malformed(error.message, self.connection.address)
            self.fail(error)
        except Exception:  # the client gets an answer, whatever it sent
            log.exception("A gRPC call to %s failed", self.head.path)
            self.fail(INTERNAL)

    def _read(self) -> None:
        while not self.is_over and self.accepts_messages() and self._read_message():
            if self.held_bytes and self.accepts_messages() and self.connection.turn_share.is_used_up():
                self.is_reading = True
                self.connection.slices.add(self._read_on)
                break
        if not self.is_over:
            self._settle()

    def _read_on(self) -> bool:
        """Answer the next messages of many."""
        self.is_reading = False
        self.go_on()
        if self.connection.frontend.closing:
            self.shut_down()
        self.connection.flush_soon()
        return False

    def _read_message(self) -> bool:
        """Answer the next message; False if more of it must come first."""
        arriving, reader = self._arriving, self._reader
        if arriving is not None:
            if not arriving.is_complete:
                self._check_end()
                return False
            if arriving.read_on():
                self.is_reading = True
                self.connection.slices.add(self._read_slice)
                return True
            self._arriving = None
            self.connection.arriving_count -= 1
            self.on_arrived(arriving)
            return True
        if reader is None:
            self._check_end()
            return False
        large = reader.take_large(LARGE_MESSAGE_BYTES) if self.receives_large else None
        if large is not None:
            self._begin_arriving(*large)
            return True
        message = reader.next()
        if message is None:
            if reader.is_inflating:
                self._inflate_soon()
            else:
                self._check_end()
            return False
        if self.receives_large and len(message) > LARGE_MESSAGE_BYTES:  # it was compressed
            self._begin_arriving(len(message), [message])
            return True
        self.on_message(message)
        return True

    def _inflate_soon(self) -> None:
        if not self._inflates:
            self._inflates = True
            self.connection.slices.add(self._inflate)

    def _inflate(self) -> bool:
        """Decompress the next slice of a message."""
        self._inflates = False
        self.go_on()
        self.connection.flush_soon()
        return False

    def _begin_arriving(self, nbytes: int, pieces: Sequence[bytes | memoryview | bytearray]) -> None:
        arriving = self._arriving = self.begin_large(nbytes)
        self.connection.arriving_count += 1
        self.connection.flow.begin_sending()
        for piece in pieces:
            arriving.feed(piece)

    def _read_slice(self) -> bool:
        """Do a slice of the work on a large message that has arrived; True if there is more."""
        arriving = self._arriving
        if self.is_over or arriving is None:
            return False
        try:
            self.is_reading = arriving.read_on()
        except Exception:  # the client gets an answer, whatever it sent
            log.exception("A gRPC call to %s failed", self.head.path)
            self.fail(INTERNAL)
        self.go_on()
        self.connection.flush_soon()
        return self.is_reading and not self.is_over

    def _check_end(self) -> None:
        if not self.half_closed:
            return
        if self._arriving is not None:
            missing = f"{self._arriving.left_bytes} bytes of it are missing"
            raise CallError(GrpcStatus.INTERNAL, f"the call ended in the middle of a message: {missing}")
        if self.held_bytes:
            rest = f"{self.held_bytes} bytes of it have arrived"
            raise CallError(GrpcStatus.INTERNAL, f"the call ended in the middle of a message: {rest}")
        self.on_half_close()

    def _settle(self) -> None:
        """Count the bytes that are held, and give the client back those of which more must follow, or which are used."""
        unreturned = self._received_bytes - self._returned_bytes
        reader = self._reader
        held = 0
        if reader is not None:
            held = reader.held_bytes
            if not held:
                self._reader = None
        counted = held + self._answered_bytes
        if self._arriving is not None:
            counted += self._arriving.private_bytes
        is_inflating = reader is not None and reader.is_inflating
        if reader is not None and is_inflating:
            counted += reader.inflated_bytes
        if counted != self._counted_bytes:
            self.connection.count_held(counted - self._counted_bytes)
            self._counted_bytes = counted
        waits = held > 0 and (is_inflating or not self.accepts_messages())
        if waits:
            unreturned -= held
        elif held and reader is not None:
            reader.compact()  # the rest of this message may exceed the window
        if unreturned > 0:
            self._returned_bytes += unreturned
            self.stream.give_back(unreturned)
        if waits:
            self.stream.lend(held - self.stream.lent_bytes)  # other streams must not wait for this one

    @property
    def is_incomplete(self) -> bool:
        """The client has sent a part of a message, and must send the rest."""
        reader = self._reader
        begun = self._arriving is not None or (reader is not None and reader.held_bytes > 0 and not reader.is_inflating)
        return begun and not self.is_over and self.accepts_messages()

    @property
    def arriving(self) -> Iterable[Admission]:
        """The admission of a request whose tensors are arriving in a model's memory."""
        return () if self._arriving is None else self._arriving.arriving

    def give_up_arriving(self) -> None:
        """Release the memory of an arriving message; the connection is about to close."""
        if self._arriving is not None:
            self._arriving.give_up()

    def check_progress(self) -> None:
        """Called now and then: end a call of whose message nothing has come since the previous time."""
        if self.is_over or self.half_closed or not (self.needs_message() or self.is_incomplete):
            self._received_then = -1
        elif self._received_then == self._received_bytes:
            message = "the client has sent no part of its message for a minute"
            self.connection.frontend.malformed(message, self.connection.address)
            self.fail(CallError(GrpcStatus.DEADLINE_EXCEEDED, message))
        else:
            self._received_then = self._received_bytes

    def shut_down(self) -> None:
        """The server stops: the call ends once everything that has arrived is answered."""
        if not self.is_over and not self.is_working():
            self.fail(SHUTTING_DOWN)

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that have arrived and were not answered yet."""
        return 0 if self._reader is None else self._reader.held_bytes

    def on_reset(self, _code: int, error: RemoteProtocolError | None) -> None:
        """The client has cancelled the call, or its connection has ended."""
        if error is not None:
            self.connection.frontend.malformed(str(error), self.connection.address)
        self._end(GrpcStatus.CANCELLED)
        self.release_sent()
        self.on_cancelled()

    def _deadline_passed(self) -> None:
        self._timer = None
        if not self.is_over:
            self.fail(CallError(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            self.connection.flush_soon()

    # The server's side

    def send(self, message: bytes) -> None:
        """Send a small message."""
        if self._record is not None:
            self._record.sent_bytes += len(message)
        self._send_head()
        self.stream.send_data(PREFIX.pack(0, len(message)) + message)

    def send_encoded(self, message: EncodedMessage, response: InferenceResponse) -> None:
        """Send a message, and release the response once its memory is no longer needed."""
        if self._record is not None:
            self._record.sent_bytes += message.nbytes
        self._send_head()
        pieces = message.pieces
        self.stream.send_data(b"".join((PREFIX.pack(0, message.nbytes), pieces[0])))
        for piece in pieces[1:]:
            self.stream.send_data(bytes(piece) if self.connection.is_secure else memoryview(piece))
        if message.borrows_memory:
            self.unreleased = [*self.unreleased, response]
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
        head = answer_head(self._record)
        self._end(sent_bytes=message.nbytes)
        body = b"".join((PREFIX.pack(0, message.nbytes), *message.pieces))
        response.release()
        self.stream.respond(head, body, OK_TRAILERS)
        self._stop_receiving()

    def reply(self, message: bytes) -> None:
        """Send the only message of a successful call, and end it."""
        self._end(sent_bytes=len(message))
        self.stream.respond(HEAD, PREFIX.pack(0, len(message)) + message, OK_TRAILERS)
        self._stop_receiving()

    def finish(self) -> None:
        """End a successful call."""
        self._end()
        self._send_end()

    def _send_end(self) -> None:
        self._send_head()
        self.stream.send_trailers(OK_TRAILERS)
        self._stop_receiving()

    def fail(self, error: CallError) -> None:
        """End the call with a status, and everything that it has begun."""
        if self.is_over:
            return
        self._end(error.status)
        self.on_cancelled()
        self._send_failure(error)

    def _send_failure(self, error: CallError) -> None:
        if self.stream.head_sent:
            self.stream.send_trailers(trailers(error.status, error.message))
        else:
            self.stream.send_headers(trailers_only(error.status, error.message), end=True)
        self._stop_receiving()

    def on_drained(self) -> None:
        """Everything that was sent has been handed to the transport."""
        self.release_sent()
        if self.is_over:
            self._stop_receiving()
        else:
            self.on_writable()

    def release_sent(self) -> None:
        """Release responses whose memory was sent, as soon as the transport has let it go."""
        unreleased, self.unreleased = self.unreleased, ()
        for response in unreleased:
            self.connection.release_when_written(response)

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not taken."""
        return self.stream.waiting_bytes

    def _send_head(self) -> None:
        if not self.stream.head_sent:
            self.stream.send_headers(answer_head(self._record))

    def _stop_receiving(self) -> None:
        """Ask a client that still sends to stop (RFC 9113 section 8.1)."""
        if not self.half_closed and not self.stream.waiting_bytes:
            self.stream.reset(ErrorCode.NO_ERROR)

    def end_answered(self) -> None:
        """The only message of a successful call was sent with its trailers. The client had sent one message in one piece."""
        self.is_over = True
        self.connection.frontend.answers.ok += 1
        if self._timer is not None:
            self.forget_deadline()
        self.connection.flush_soon()

    def forget_deadline(self) -> None:
        """The deadline does not matter any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: GrpcStatus | str = GrpcStatus.OK, sent_bytes: int = 0) -> None:
        if not self.is_over:
            answers = self.connection.frontend.answers
            if status is GrpcStatus.OK:
                answers.ok += 1
            else:
                answers.add(status_name(status))
            if self._record is not None:
                record, self._record = self._record, None
                end_record(record, status, self._received_bytes, sent_bytes)
        self.is_over = True
        self.forget_deadline()
        if self._counted_bytes:
            self.connection.count_held(-self._counted_bytes)
            self._counted_bytes = 0
        unreturned = self._received_bytes - self._returned_bytes
        if unreturned:
            self._returned_bytes = self._received_bytes
            self.stream.give_back(unreturned)
        if self._reader is not None:
            self._reader.clear()
        if self._arriving is not None:
            self._arriving.release()
            self._arriving = None
            self.connection.arriving_count -= 1
