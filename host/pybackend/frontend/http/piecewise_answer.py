"""A response encoded while it is sent: one slice of work per turn of the loop, and none while the client does not read.

``infer_protocol`` uses it for large JSON responses. Numbers are sent in chunks as they are made, so that no more than a
few hundred kilobytes are buffered. Responses that must be complete before the first byte is sent (strings that may
prove not to be text, JSON before binary tensors, responses to HTTP/1.0) are collected first, and count as buffered
while they grow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from pybackend.errors import InferenceError
from pybackend.frontend.http.slices import Slices
from pybackend.inference.response import InferenceResponse
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

    def begin_chunks(self) -> None:
        """Send the head of a chunked response."""

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


class PiecewiseAnswer:
    """One response.

    Args:
        connection: the connection to send it on.
        response: the response to encode; it is released when it was sent, or will not be.
        output_format: from the request's plan.
        takes_chunks: the client speaks HTTP/1.1.
    """

    def __init__(
        self, connection: Connection, response: InferenceResponse, output_format: OutputFormat, *, takes_chunks: bool
    ) -> None:
        self._connection = connection
        self._response = response
        self._body = PiecewiseResponse(response, output_format)
        self._pieces = self._body.json_pieces()
        self._collected: list[bytes] | None = None
        if self._body.has_binary or self._body.may_fail or not takes_chunks:
            self._collected = []
        self._kept_bytes = self._body.held_bytes

    def begin(self) -> None:
        """Start sending the response, or an error if the server has no room to buffer it."""
        try:
            self._connection.keep(self._kept_bytes)
        except InferenceError as error:
            self._response.release()
            self._connection.answer_error(error)
            return
        if self._collected is None:
            self._connection.begin_chunks()
        self._go_on()

    def _go_on(self) -> None:
        self._connection.slices.add(self._step)

    def _step(self) -> bool:
        if self._connection.is_lost:
            self._end()
            return False
        try:
            piece = next(self._pieces, None)
            return self._send(piece) if self._collected is None else self._collect(self._collected, piece)
        except InferenceError as error:
            self._fail(error)
        except Exception:  # the client gets a response, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", self._response.model_name)
            self._fail(InferenceError("internal error: see the server's log"))
        return False

    def _send(self, piece: bytes | None) -> bool:
        connection = self._connection
        if piece is None:
            connection.write(b"0\r\n\r\n")
            self._end()
            connection.answered()
            return False
        if piece:
            connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return not connection.waits_for_reader(self._go_on)

    def _collect(self, collected: list[bytes], piece: bytes | None) -> bool:
        connection = self._connection
        if piece is None:
            connection.send(self._body.collected(collected), self._response)
            return False
        if piece:
            self._kept_bytes += len(piece)
            connection.keep(self._kept_bytes)
            collected.append(piece)
        return True

    def _end(self) -> None:
        self._response.release()
        self._connection.keep(0)

    def _fail(self, error: InferenceError) -> None:
        self._end()
        if self._collected is None:
            self._connection.abort()
        else:
            self._connection.answer_error(error)
