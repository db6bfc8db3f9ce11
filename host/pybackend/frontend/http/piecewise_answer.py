"""A response encoded or compressed while it is sent: a slice of work per turn of the loop, and none while the client does not read.

``infer_protocol`` uses it for large responses. Numbers in JSON, and whatever is compressed, are sent in chunks as they are
made, so that no more than a few hundred kilobytes are buffered. Responses that must be complete before the first byte is
sent (strings that may prove not to be text, JSON before binary tensors, responses to HTTP/1.0) are collected first, and
count as buffered while they grow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from pybackend.errors import InferenceError
from pybackend.frontend.compression import Coding, deflated
from pybackend.frontend.http.content_coding import LEVEL
from pybackend.frontend.http.errors import INTERNAL
from pybackend.frontend.slices import Slices
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer
from pybackend.protocol.infer_plan import OutputFormat
from pybackend.protocol.infer_response import EncodedResponse
from pybackend.protocol.json_pieces import PiecewiseResponse

log = logging.getLogger(__name__)


class Connection(Protocol):
    """The connection of a response."""

    @property
    def slices(self) -> Slices:
        """The scheduler of long work."""

    @property
    def is_lost(self) -> bool:
        """True once the client or the server has closed the connection."""

    def keep(self, nbytes: int) -> None:
        """Set the amount buffered for the client.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached.
        """

    @property
    def coding(self) -> Coding | None:
        """The compression of responses; None for none."""

    def begin_chunks(self, json_length: int | None = None) -> None:
        """Send the head of a chunked response; with ``json_length``, binary tensors follow JSON of that length."""

    def write(self, data: bytes) -> None:
        """Send raw bytes."""

    def waits_for_reader(self, go_on: Callable[[], None]) -> bool:
        """True if the client reads too slowly; ``go_on`` is then called when it has caught up or disconnected."""

    def send(self, encoded: EncodedResponse, response: InferenceResponse) -> None:
        """Send a complete response; the connection releases it."""

    def answered(self) -> None:
        """Record that the response was written completely."""

    def answer_error(self, error: InferenceError) -> None:
        """Send an error response."""

    def abort(self) -> None:
        """Close the connection in the middle of a response that cannot be completed."""


class _Answer:
    """A response that is made in pieces.

    Args:
        connection: the connection to send it on.
        response: released when it was sent, or will not be.
        pieces: its body; empty ones only mark units of work.
        kept_bytes: what it holds until it is released.
    """

    def __init__(
        self, connection: Connection, response: InferenceResponse, pieces: Iterator[bytes], kept_bytes: int
    ) -> None:
        self._connection = connection
        self._response = response
        self._pieces = pieces
        self._kept_bytes = kept_bytes

    def begin(self) -> None:
        """Start sending the response, or an error if the server has no room to buffer it."""
        try:
            self._connection.keep(self._kept_bytes)
        except InferenceError as error:
            self._response.release()
            self._connection.answer_error(error)
            return
        self._open()
        self._go_on()

    def _open(self) -> None:
        """Send the head, if it comes first."""

    def _go_on(self) -> None:
        self._connection.slices.add(self._step)

    def _step(self) -> bool:
        if self._connection.is_lost:
            self._end()
            return False
        try:
            return self._take(next(self._pieces, None))
        except InferenceError as error:
            self._fail(error)
        except Exception:  # the client gets a response, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", self._response.model_name)
            self._fail(InferenceError(INTERNAL))
        return False

    def _take(self, piece: bytes | None) -> bool:
        """Handle the next piece, None after the last one; True if there are more, and the connection is ready for them."""
        raise NotImplementedError

    def _end(self) -> None:
        self._response.release()
        self._connection.keep(0)

    def _fail(self, error: InferenceError) -> None:
        """Handle an error of the encoder."""
        self._end()
        self._connection.answer_error(error)


class _ChunkedAnswer(_Answer):
    """Sends each piece as it is made, and compressed if the client asks for it.

    Args:
        connection: as for :class:`_Answer`.
        response: likewise.
        pieces: the body before compression.
        kept_bytes: as for :class:`_Answer`.
        json_length: length of its JSON part, if binary tensors follow.
    """

    def __init__(
        self,
        connection: Connection,
        response: InferenceResponse,
        pieces: Iterable[Buffer],
        kept_bytes: int,
        json_length: int | None = None,
    ) -> None:
        coding = connection.coding
        made = map(bytes, pieces) if coding is None else deflated(pieces, coding, LEVEL)
        super().__init__(connection, response, made, kept_bytes)
        self._json_length = json_length

    def _open(self) -> None:
        self._connection.begin_chunks(self._json_length)

    def _take(self, piece: bytes | None) -> bool:
        connection = self._connection
        if piece is None:
            connection.write(b"0\r\n\r\n")
            self._end()
            connection.answered()
            return False
        if piece:
            connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return not connection.waits_for_reader(self._go_on)

    def _fail(self, error: InferenceError) -> None:
        self._end()
        self._connection.abort()


class _CollectedAnswer(_Answer):
    """Collects the pieces of the JSON part, and sends the response when all is there."""

    def __init__(self, connection: Connection, response: InferenceResponse, body: PiecewiseResponse) -> None:
        super().__init__(connection, response, body.json_pieces(), body.held_bytes)
        self._body = body
        self._collected: list[bytes] = []

    def _take(self, piece: bytes | None) -> bool:
        if piece is None:
            self._connection.send(self._body.collected(self._collected), self._response)
            return False
        if piece:
            self._kept_bytes += len(piece)
            self._connection.keep(self._kept_bytes)
            self._collected.append(piece)
        return True


def answer_in_pieces(
    connection: Connection, response: InferenceResponse, output_format: OutputFormat, *, takes_chunks: bool
) -> None:
    """Begin to send a response that is large as JSON.

    Args:
        connection: the connection to send it on.
        response: the response to encode; it is released when it was sent, or will not be.
        output_format: from the request's plan.
        takes_chunks: the client speaks HTTP/1.1.
    """
    body = PiecewiseResponse(response, output_format)
    if body.has_binary or body.may_fail or not takes_chunks:
        _CollectedAnswer(connection, response, body).begin()
    else:
        _ChunkedAnswer(connection, response, body.json_pieces(), body.held_bytes).begin()


def answer_compressed(connection: Connection, encoded: EncodedResponse, response: InferenceResponse) -> None:
    """Begin to send a response that is encoded, and takes long to compress, to a client that takes chunks."""
    pieces = [encoded.header_json, *encoded.chunks]
    _ChunkedAnswer(connection, response, pieces, encoded.body_bytes, encoded.json_length).begin()
