"""The answer to one infer request, in the form that the client wants.

A large answer is encoded or compressed while it is sent: a slice of work per turn of the loop, and none while the
client does not read. Numbers in JSON, and anything that is compressed, are sent in chunks as they are made, so that no
more than a few hundred kilobytes are buffered. Answers that must be complete before the first byte is sent (strings
that may prove not to be text, JSON before binary tensors, answers to HTTP/1.0) are collected first, and count as held
while they grow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from pybackend.engine.answers import AnswerCounts
from pybackend.errors import InferenceError
from pybackend.frontend.compression import DEFLATED_SLICE_BYTES, Coding, deflated
from pybackend.frontend.flow import UNCOUNTED_BYTES
from pybackend.frontend.http.answer_writer import INTERNAL, STATUS
from pybackend.frontend.http.connection import Exchange, HttpConnection, State
from pybackend.frontend.http.content_coding import ACCEPTED, LEVEL, UnsupportedCodingError, compressed
from pybackend.frontend.listener import is_secure
from pybackend.inference.pending import RequestHandle
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer
from pybackend.protocol.infer_plan import OutputFormat
from pybackend.protocol.json.infer_response import EncodedResponse, encode_response
from pybackend.protocol.json.pieces import PiecewiseResponse, is_large

log = logging.getLogger(__name__)

JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
    b"content-length: %d\r\n\r\n"
)
_CHUNKS_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
_BINARY_CHUNKS_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_ACCEPTED = b"accept-encoding: %b\r\n" % ACCEPTED.encode()


class InferAnswer(Exchange):
    """The answer to a request that a model has."""

    __slots__ = (
        "_answers",
        "_takes_chunks",
        "coding",
        "connection",
        "has_begun",
        "output_format",
        "pending",
        "unread",
    )

    def __init__(
        self,
        connection: HttpConnection,
        answers: AnswerCounts,
        output_format: OutputFormat,
        coding: Coding | None,
        takes_chunks: bool,
    ) -> None:
        self.connection = connection
        self._answers = answers
        self.output_format = output_format
        self.coding = coding
        self._takes_chunks = takes_chunks
        self.has_begun = False
        self.unread = ()
        self.pending: RequestHandle | None = None  # the handle of the request; None once it is answered

    @property
    def is_owed(self) -> bool:
        return self.pending is not None

    def on_lost(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.cancel()

    def on_response(self, response: InferenceResponse) -> None:
        """Send what the model has answered."""
        self.pending = None
        if self.connection.state >= State.CLOSING:
            response.release()
        elif response.error is not None:
            self.fail(response.error)
        else:
            self.unread = (response,)
            if is_large(response, self.output_format):
                self._send_in_pieces(response)
            else:
                self._send_at_once(response)

    def _send_at_once(self, response: InferenceResponse) -> None:
        try:
            encoded = encode_response(response, self.output_format)
        except InferenceError as error:
            response.release()
            self.fail(error)
        except Exception:  # the client gets an answer, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", response.model_name)
            response.release()
            self.fail(InferenceError(INTERNAL))
        else:
            self.send(encoded, response)

    def send(self, encoded: EncodedResponse, response: InferenceResponse) -> None:
        """Send a complete answer, and release the model's response once it is sent."""
        connection = self.connection
        if self.coding is not None:
            if encoded.body_bytes > DEFLATED_SLICE_BYTES:
                pieces = [encoded.header_json, *encoded.chunks]
                _ChunkedPieces(self, response, pieces, encoded.body_bytes, encoded.json_length).begin()
                return
            encoded = compressed(encoded, self.coding)
        is_long = encoded.body_bytes > UNCOUNTED_BYTES
        if is_long:
            try:
                connection.flow.hold(max(encoded.body_bytes, connection.flow.held_bytes))
            except InferenceError as error:
                response.release()
                self.fail(error)
                return
        if encoded.json_length is None:
            head = JSON_HEAD % encoded.body_bytes
        else:
            head = BINARY_HEAD % (encoded.json_length, encoded.body_bytes)
        head = self.begin(head)
        if connection.record is not None:
            connection.record.sent_bytes = encoded.body_bytes
        if (is_long or encoded.borrows_memory) and not is_secure(connection.transport):

            def written() -> None:
                response.release()
                connection.flow.hold(0)
                connection.answered()

            connection.writer.write_views([head + encoded.header_json, *encoded.chunks], written)
        else:
            whole = b"".join((head, encoded.header_json, *encoded.chunks))
            response.release()
            connection.flow.hold(0)  # from now on the transport's buffer counts
            connection.transport.write(whole)
            connection.answered()

    def begin(self, head: bytes) -> bytes:
        """Count the answer; returns its head with the fields that few answers have."""
        self.has_begun = True
        self._answers.ok += 1
        connection = self.connection
        if self.coding is not None:
            head = b"%bcontent-encoding: %b\r\n\r\n" % (head[:-2], self.coding.value.encode())
        if connection.record is not None:
            connection.record.status = 200
            if connection.record.traceparent:
                head = b"%btraceparent: %b\r\n\r\n" % (head[:-2], connection.record.traceparent)
        fields = connection.writer.fields()
        return head[:-2] + fields + b"\r\n" if fields else head

    def fail(self, error: InferenceError) -> None:
        self.connection.flow.hold(0)
        fields = _ACCEPTED if isinstance(error, UnsupportedCodingError) else b""
        self.connection.writer.write_error(self.connection.record, STATUS[error.code], error.message, fields)
        self.connection.answered()

    def _send_in_pieces(self, response: InferenceResponse) -> None:
        body = PiecewiseResponse(response, self.output_format)
        if body.has_binary or body.may_fail or not self._takes_chunks:
            _CollectedPieces(self, response, body).begin()
        else:
            _ChunkedPieces(self, response, body.json_pieces(), body.held_bytes).begin()


class _Pieces:
    """Makes an answer in slices.

    Empty pieces of the body only mark units of work. ``held_bytes`` is the memory that it takes until the response is
    released.
    """

    def __init__(
        self, answer: InferAnswer, response: InferenceResponse, pieces: Iterator[bytes], held_bytes: int
    ) -> None:
        self._answer = answer
        self._connection = answer.connection
        self._response = response
        self._pieces = pieces
        self._held_bytes = held_bytes

    def begin(self) -> None:
        """Start, or send an error if the server has no memory for it."""
        try:
            self._connection.flow.hold(self._held_bytes)
        except InferenceError as error:
            self._response.release()
            self._answer.fail(error)
            return
        self._open()
        self._go_on()

    def _open(self) -> None:
        """Send the head, if it comes first."""

    def _go_on(self) -> None:
        self._connection.port.slices.add(self._step)

    def _step(self) -> bool:
        if self._connection.state >= State.CLOSING:
            self._end()
            return False
        try:
            return self._take(next(self._pieces, None))
        except InferenceError as error:
            self._fail(error)
        except Exception:  # the client gets an answer, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", self._response.model_name)
            self._fail(InferenceError(INTERNAL))
        return False

    def _take(self, piece: bytes | None) -> bool:
        """Handle the next piece, None after the last one; True if there are more, and the client is ready for them."""
        raise NotImplementedError

    def _end(self) -> None:
        self._response.release()
        self._connection.flow.hold(0)

    def _fail(self, error: InferenceError) -> None:
        self._end()
        self._answer.fail(error)


class _ChunkedPieces(_Pieces):
    """Sends each piece as it is made, and compressed if the client asks for it.

    ``json_length`` is that of the JSON part, if binary tensors follow; the pieces are those before compression.
    """

    def __init__(
        self,
        answer: InferAnswer,
        response: InferenceResponse,
        pieces: Iterable[Buffer],
        held_bytes: int,
        json_length: int | None = None,
    ) -> None:
        made = map(bytes, pieces) if answer.coding is None else deflated(pieces, answer.coding, LEVEL)
        super().__init__(answer, response, made, held_bytes)
        self._json_length = json_length

    def _open(self) -> None:
        head = _CHUNKS_HEAD if self._json_length is None else _BINARY_CHUNKS_HEAD % self._json_length
        self._connection.transport.write(self._answer.begin(head))

    def _write(self, data: bytes) -> None:
        if self._connection.record is not None:
            self._connection.record.sent_bytes += len(data)
        self._connection.transport.write(data)

    def _take(self, piece: bytes | None) -> bool:
        if piece is None:
            self._write(b"0\r\n\r\n")
            self._end()
            self._connection.answered()
            return False
        if piece:
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return not self._connection.writer.waits_for_reader(self._go_on)

    def _fail(self, error: InferenceError) -> None:
        self._end()
        self._connection.transport.abort()


class _CollectedPieces(_Pieces):
    """Collects the pieces of the JSON part, and sends the answer when all is there."""

    def __init__(self, answer: InferAnswer, response: InferenceResponse, body: PiecewiseResponse) -> None:
        super().__init__(answer, response, body.json_pieces(), body.held_bytes)
        self._body = body
        self._collected: list[bytes] = []

    def _take(self, piece: bytes | None) -> bool:
        if piece is None:
            self._answer.send(self._body.collected(self._collected), self._response)
            return False
        if piece:
            self._held_bytes += len(piece)
            self._connection.flow.hold(self._held_bytes)
            self._collected.append(piece)
        return True
