"""A call: it reads its client's messages, its handler answers them, and it ends with a status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pybackend.engine.admission import ClientAdmission
from pybackend.errors import InferenceError
from pybackend.frontend.grpc.answer import CompressedAnswer, Compression, MessageSender, stop_receiving
from pybackend.frontend.grpc.arriving_request import LARGE_MESSAGE_BYTES, ArrivingRequest
from pybackend.frontend.grpc.errors import INTERNAL, OK_TRAILERS, SHUTTING_DOWN, CallError, answer_head, trailers_only
from pybackend.frontend.grpc.head import CallHead, CallRefusal, context_of
from pybackend.frontend.grpc.length_prefixed import LARGEST_MESSAGE_BYTES, PREFIX, MessageReader, whole_message
from pybackend.frontend.grpc.peer import Peer
from pybackend.frontend.request_log import RequestRecord, begin_trace
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import Buffer
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend_http2 import Fields, RemoteProtocolError, ServerConnection, Stream, StreamReceiver

log = logging.getLogger(__name__)


class Handler:
    """Answers the messages of one call.

    The methods are those of a handler without work; subclasses replace those that they need.

    Attributes:
        most_bytes: the limit of a message, which is refused before it has arrived.
        refusal: the error for larger messages; None for the usual one.
        takes_large: large messages are infer requests, which :meth:`begin_large` receives; others are collected.
        kept_bytes: size of the message that is being answered, if the handler keeps it meanwhile and it is large.
    """

    most_bytes = LARGEST_MESSAGE_BYTES
    refusal: CallError | None = None
    takes_large = False
    kept_bytes = 0

    def on_message(self, message: bytes) -> None:
        """Called with each message.

        Raises:
            CallError, InferenceError: the call ends with this status.
        """

    def begin_large(self, nbytes: int) -> ArrivingRequest:
        """Called with the size of a large message when its first bytes have arrived.

        Raises as :meth:`on_message` does.
        """
        raise NotImplementedError

    def on_arrived(self, arrived: ArrivingRequest) -> None:
        """Called when the whole of a large message has arrived; raises as :meth:`on_message` does."""

    def on_half_close(self) -> None:
        """Called after the last message; raises as :meth:`on_message` does."""

    def on_cancelled(self) -> None:
        """Called when nobody waits for the answer any more: the client has gone, or the call has failed."""

    def on_writable(self) -> None:
        """Called when the client has taken everything that was sent."""

    def is_working(self) -> bool:
        """True while a message that has arrived is being answered."""
        return False

    def needs_message(self) -> bool:
        """True if there can be no answer before the client sends a message."""
        return False

    def accepts_messages(self) -> bool:
        """False while further messages must wait; :meth:`GrpcCall.go_on` then continues."""
        return True


_NOBODY = Handler()


class AnsweredCall(StreamReceiver):
    """A call, as its connection sees it: one that is answered here, or elsewhere."""

    def is_working(self) -> bool:
        """True once models have all that its client sends, while it is answered."""
        raise NotImplementedError


class GrpcCall(AnsweredCall):
    """A call, from its head to its end.

    Attributes:
        peer: the client.
        stream: the answer goes there. While it is receiving, the client may send further messages.
        head: the call's head.
        handler: answers its messages; one without work once the call is over.
        messages: what has arrived and was not answered yet; None if that is nothing.
        answer: the messages of the answer; None before there are any, and for a whole small answer.
        compression: of the answer; None if it is not compressed.
        record: of the call, for the log and its trace; None if nobody wants it.
        received_bytes: size of the client's messages.
        is_over: the end was sent, or the call was cancelled.
    """

    # Defaults of the class, which most calls never change: making a call is a good part of a small one.
    handler = _NOBODY
    messages: InboundMessages | None = None
    answer: MessageSender | CompressedAnswer | None = None
    compression: Compression | None = None
    record: RequestRecord | None = None
    received_bytes = 0
    is_over = False
    _received_then = -1
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, peer: Peer, stream: Stream, head: CallHead, timeout_s: float | None) -> None:
        self.peer = peer
        self.stream = stream
        self.head = head
        request_log = peer.frontend.request_log
        if request_log.on:
            self.record = request_log.begin("grpc", peer.address, b"POST", head.path.encode("latin-1"))
        if timeout_s is not None:
            self._timer = peer.loop.call_later(timeout_s, self._deadline_passed)

    # Events of the stream

    def on_data(self, payload: bytes | memoryview, ended: bool) -> None:
        """A piece of the client's messages."""
        size = len(payload)
        if self.is_over:
            self.stream.give_back(size)
            return
        self.received_bytes += size
        if self.messages is None:
            message = whole_message(payload) if self.handler.accepts_messages() else None
            if message is not None:
                self.stream.give_back(size)
                self._handle(message)
                return
            self.messages = InboundMessages(self)
        self.messages.feed(payload)
        self.messages.read()

    def on_trailers(self, _trailers: Fields) -> None:
        """The client's messages have ended."""
        self.go_on()

    def on_reset(self, _code: int, error: RemoteProtocolError | None) -> None:
        """The client has cancelled the call, or its connection has ended."""
        if error is not None:
            self.peer.frontend.malformed(str(error), self.peer.address)
        if not self.is_over:
            self._cancel(GrpcStatus.CANCELLED)
        if self.answer is not None:
            self.answer.drop()

    def on_drained(self) -> None:
        """Everything that was sent has been handed to the transport."""
        if self.answer is not None:
            self.answer.release_sent()
        if not self.is_over:
            self.handler.on_writable()
        elif self.answer is not None:
            self.answer.stop_receiving()
        else:
            stop_receiving(self.stream)

    # Reading

    def go_on(self) -> None:
        """Answer what has arrived: the handler accepts messages again, or the client has sent the last one."""
        if self.messages is not None:
            self.messages.read()
        elif not self.is_over:
            self._handle(None)

    def _handle(self, message: bytes | None) -> None:
        """Answer a message, if there is one, and the end of messages."""
        try:
            if message is not None:
                self.handler.on_message(message)
            if not self.stream.receiving and not self.is_over and self.handler.accepts_messages():
                self.handler.on_half_close()
        except Exception as error:  # noqa: BLE001  whatever the client sent, it gets an answer
            self.failed(error)

    @property
    def is_reading(self) -> bool:
        """Messages are being read, or wait for that."""
        messages = self.messages
        return messages is not None and (messages.is_busy or messages.is_begun)

    def check_progress(self) -> None:
        """Called now and then: end a call of whose message nothing has come since the previous time."""
        messages = self.messages
        if messages is None:
            waits = self.handler.needs_message()
        else:
            waits = not messages.is_busy and (messages.is_incomplete or self.handler.needs_message())
        if self.is_over or not self.stream.receiving or not waits:
            self._received_then = -1
        elif self._received_then == self.received_bytes:
            message = "the client has sent no part of its message for a minute"
            self.peer.frontend.malformed(message, self.peer.address)
            self.fail(CallError(GrpcStatus.DEADLINE_EXCEEDED, message))
        else:
            self._received_then = self.received_bytes

    # Answering

    def is_working(self) -> bool:
        return self.is_over or self.handler.is_working()

    def open_answer(self) -> MessageSender | CompressedAnswer:
        if self.answer is None:
            if self.compression is None:
                self.answer = MessageSender(self.peer, self.stream, self.record)
            else:
                self.answer = CompressedAnswer(self.peer, self.stream, self.record, self.compression)
        return self.answer

    def reply(self, pieces: Sequence[Buffer], nbytes: int) -> None:
        """Send the only message of a successful call, and end it. It is copied, and not compressed."""
        head = answer_head(self.record)
        self._end(sent_bytes=nbytes)
        self.stream.respond(head, b"".join((PREFIX.pack(0, nbytes), *pieces)), OK_TRAILERS)
        stop_receiving(self.stream)

    # Ending

    def finish(self) -> None:
        """End a successful call."""
        answer = self.open_answer()
        self._end()
        answer.end(None)

    def replied(self) -> None:
        """The only message of a successful call was sent with its trailers.

        The client had sent one message in one piece.
        """
        self.is_over = True
        self.handler = _NOBODY
        self.peer.frontend.answer_counts.ok += 1
        if self._timer is not None:
            self.forget_deadline()
        self.peer.flush_soon()

    def fail(self, error: CallError) -> None:
        """End the call with a status, and everything that it has begun."""
        if self.is_over:
            return
        self._cancel(error.status)
        if self.answer is not None:
            self.answer.end(error)
        else:
            self.stream.send_headers(trailers_only(error.status, error.message), end=True)
            stop_receiving(self.stream)

    def failed(self, error: Exception) -> None:
        """End the call, because its messages could not be handled."""
        frontend, address = self.peer.frontend, self.peer.address
        if isinstance(error, InferenceError):
            frontend.refused(error, address)
            self.fail(CallError.of(error))
        elif isinstance(error, CallError):
            frontend.malformed(error.message, address)
            self.fail(error)
        else:
            log.error("A gRPC call to %s failed", self.head.path, exc_info=error)
            self.fail(INTERNAL)

    def refuse(self, refusal: CallRefusal) -> None:
        """End the call by its head."""
        self.peer.frontend.malformed(refusal.message, self.peer.address, refusal.reason)
        self._end(refusal.status)
        self.stream.send_headers(refusal.answer, end=True)
        stop_receiving(self.stream)

    def shut_down(self) -> None:
        """The server stops: the call ends once everything that has arrived is answered."""
        if not (self.is_over or self.handler.is_working() or (self.messages is not None and self.messages.is_busy)):
            self.fail(SHUTTING_DOWN)

    def _deadline_passed(self) -> None:
        self._timer = None
        if not self.is_over:
            self.fail(CallError(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            self.peer.flush_soon()

    def forget_deadline(self) -> None:
        """The deadline does not matter any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel(self, status: GrpcStatus) -> None:
        handler = self.handler
        self._end(status)
        handler.on_cancelled()

    def _end(self, status: GrpcStatus | str = GrpcStatus.OK, sent_bytes: int = 0) -> None:
        """Count the end, and let go what the call has. A name as status is that of a refusal."""
        self.is_over = True
        self.handler = _NOBODY
        counts, record = self.peer.frontend.answer_counts, self.record
        if status is GrpcStatus.OK:
            counts.ok += 1
        else:
            status = status.name if isinstance(status, GrpcStatus) else status
            counts.add(status)
        if record is not None:
            self.record = None
            record.status = status.name if isinstance(status, GrpcStatus) else status
            record.received_bytes = self.received_bytes
            record.sent_bytes += sent_bytes
            record.end()
        self.forget_deadline()
        if self.messages is not None:
            self.messages.drop()
            self.messages = None


class InboundMessages:
    """The bytes of a call's messages that have arrived and are not answered yet."""

    def __init__(self, call: GrpcCall) -> None:
        self._call = call
        handler, limits = call.handler, call.peer.frontend.limits
        self._reader = MessageReader(call.head.encoding, limits, handler.most_bytes, handler.refusal)
        self._arriving: ArrivingRequest | None = None
        self._unreturned_bytes = self._counted_bytes = 0
        self.is_busy = False  # it is read in slices, because it is large, compressed or many: further messages wait

    def feed(self, payload: bytes | memoryview) -> None:
        """Take the next bytes of the client."""
        self._unreturned_bytes += len(payload)
        arriving = self._arriving
        if arriving is not None:
            rest = payload[arriving.left_bytes :]
            arriving.feed(payload[: arriving.left_bytes] if rest else payload)
            payload = rest
        if payload:
            self._reader.feed(payload)

    @property
    def room(self) -> memoryview | None:
        """Memory for the next bytes of the client, if they belong to a large tensor."""
        return None if self._arriving is None else self._arriving.room

    def stored(self, count: int) -> None:
        """The next bytes of the client were written to :attr:`room`."""
        assert self._arriving is not None
        self._call.received_bytes += count
        self._unreturned_bytes += count
        self._arriving.stored(count)
        self.read()

    def read(self) -> None:
        """Answer the messages that have arrived, as far as the handler accepts them."""
        call, reader = self._call, self._reader
        try:
            while not (self.is_busy or call.is_over) and call.handler.accepts_messages() and self._read_next():
                if reader.held_bytes and call.handler.accepts_messages() and call.peer.turn_share.is_used_up():
                    self._read_later()
            if not call.is_over:
                self._settle()
        except Exception as error:  # noqa: BLE001  whatever the client sent, it gets an answer
            call.failed(error)

    def _read_next(self) -> bool:
        """Answer the next message; False if more of it must come or be done first."""
        arriving, reader, handler = self._arriving, self._reader, self._call.handler
        if arriving is not None:
            if not arriving.is_complete:
                self._check_end()
                return False
            if arriving.read_on():
                self._read_later()
                return False
            self._arriving = None
            self._call.peer.arriving_count -= 1
            handler.on_arrived(arriving)
            return True
        large = reader.take_large(LARGE_MESSAGE_BYTES) if handler.takes_large else None
        if large is None:
            message = reader.next()
            if message is None:
                if reader.is_inflating:
                    self._read_later()
                else:
                    self._check_end()
                return False
            if not handler.takes_large or len(message) <= LARGE_MESSAGE_BYTES:
                handler.on_message(message)
                return True
            large = len(message), [message]  # it was compressed
        self._begin_large(*large)
        return True

    def _begin_large(self, nbytes: int, pieces: Sequence[bytes | memoryview | bytearray]) -> None:
        peer = self._call.peer
        self._arriving = self._call.handler.begin_large(nbytes)
        peer.arriving_count += 1
        peer.flow.begin_sending()
        for piece in pieces:
            self._arriving.feed(piece)

    def _read_later(self) -> None:
        """Go on in another turn of the loop."""
        self.is_busy = True
        self._call.peer.slices.add(self._read_on)

    def _read_on(self) -> bool:
        call = self._call
        self.is_busy = False
        if not call.is_over:
            self.read()
            if call.peer.frontend.refusing:
                call.shut_down()
            call.peer.flush_soon()
        return False

    def _check_end(self) -> None:
        """See what it means that no whole message is there."""
        if self._call.stream.receiving:
            return
        if self._arriving is not None:
            missing = f"{self._arriving.left_bytes} bytes of it are missing"
            raise CallError(GrpcStatus.INTERNAL, f"the call ended in the middle of a message: {missing}")
        if self._reader.held_bytes:
            rest = f"{self._reader.held_bytes} bytes of it have arrived"
            raise CallError(GrpcStatus.INTERNAL, f"the call ended in the middle of a message: {rest}")
        self._call.handler.on_half_close()

    def _settle(self) -> None:
        """Count the bytes that are held, and give the client back those of which more must follow, or which are used."""
        call, reader, arriving = self._call, self._reader, self._arriving
        held = reader.held_bytes
        counted = held + reader.inflated_bytes + call.handler.kept_bytes
        if arriving is not None:
            counted += arriving.private_bytes
        if counted != self._counted_bytes:
            call.peer.flow.hold(call.peer.flow.held_bytes + counted - self._counted_bytes)
            self._counted_bytes = counted
        waits = held > 0 and (self.is_busy or not call.handler.accepts_messages())
        unreturned = self._unreturned_bytes
        if waits:
            unreturned -= held
        elif held:
            reader.compact()  # the rest of this message may exceed the window
        if unreturned > 0:
            self._unreturned_bytes -= unreturned
            call.stream.give_back(unreturned)
        if waits:
            call.stream.lend(held - call.stream.lent_bytes)  # other streams must not wait for this one
        elif not (counted or self.is_busy or arriving):
            call.messages = None

    @property
    def is_begun(self) -> bool:
        """A part of a message has arrived."""
        return self._arriving is not None or self._reader.held_bytes > 0

    @property
    def is_incomplete(self) -> bool:
        """The client has sent a part of a message, and must send the rest."""
        return self.is_begun and not self.is_busy and self._call.handler.accepts_messages()

    @property
    def arriving(self) -> Sequence[ClientAdmission]:
        """The admission of a request whose tensors are arriving in a model's memory."""
        return () if self._arriving is None else self._arriving.arriving

    def give_up_arriving(self) -> None:
        """Release the memory of an arriving message; the connection is about to close."""
        if self._arriving is not None:
            self._arriving.give_up()

    def drop(self) -> None:
        """The call is over: let go all that has arrived."""
        call = self._call
        if self._counted_bytes:
            call.peer.flow.hold(call.peer.flow.held_bytes - self._counted_bytes)
        if self._unreturned_bytes:
            call.stream.give_back(self._unreturned_bytes)
        self._reader.clear()
        if self._arriving is not None:
            self._arriving.release()
            self._arriving = None
            call.peer.arriving_count -= 1


def open_calls(http2: ServerConnection) -> list[GrpcCall]:
    """The calls of a connection that have not ended."""
    return [stream.receiver for stream in http2.streams.values() if isinstance(stream.receiver, GrpcCall)]


def open_messages(http2: ServerConnection) -> list[InboundMessages]:
    """The messages of a connection that have arrived in part, or wait."""
    return [call.messages for call in open_calls(http2) if call.messages is not None]


def note_request(
    call: GrpcCall, admission: ClientAdmission, request: InferenceRequest, began_ns: int = 0
) -> RequestTrace | None:
    """Note a request in the call's record, and begin its trace if it is chosen.

    For calls of which anything may be noted.
    """
    head, apart, record = call.head, call.stream.fields_apart, call.record
    if record is not None:
        record.asks(admission.model_name, admission.model_version, request.id)
        record.continues({**head.metadata, **dict(apart)}.get(b"traceparent"))
    context = context_of(apart) if apart else head.context
    return begin_trace(call.peer.frontend.engine.tracer, request, admission.full_name, "GRPC", context, began_ns)
