"""Writes the answers of a connection to a client that may read slowly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from pybackend.engine.answers import AnswerCounts
from pybackend.errors import ErrorCode
from pybackend.frontend.flow import UNCOUNTED_BYTES, ClientBytes, unsent_bytes
from pybackend.frontend.http.api import Apis
from pybackend.frontend.listener import Connection, Port
from pybackend.frontend.request_log import RequestRecord
from pybackend.inference.tensor import Buffer

STATUS: dict[ErrorCode, HTTPStatus] = {
    ErrorCode.UNKNOWN: HTTPStatus.BAD_REQUEST,
    ErrorCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    ErrorCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.INVALID_ARG: HTTPStatus.BAD_REQUEST,
    ErrorCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.UNSUPPORTED: HTTPStatus.NOT_IMPLEMENTED,
    ErrorCode.ALREADY_EXISTS: HTTPStatus.BAD_REQUEST,
    ErrorCode.CANCELLED: HTTPStatus.BAD_REQUEST,
}

INTERNAL = "internal error: see the server's log"
"""The answer to a mistake of the server's own."""


_C = TypeVar("_C", bound=Connection)


class AnsweringPort(Port[_C]):
    """A port of HTTP, as the writers of its answers see it. ``apis`` give errors their forms."""

    def __init__(self, apis: Apis) -> None:
        super().__init__()
        self.apis = apis
        self.answers = AnswerCounts("200")


class AnswerWriter:
    """The answers of one connection, one after the other."""

    def __init__(self, transport: Any, flow: ClientBytes, port: AnsweringPort[Any]) -> None:
        self._transport = transport
        self._flow = flow
        self._port = port
        self.keep_alive = True  # further requests may follow the current one
        self.is_1_0 = False  # the client speaks HTTP/1.0: answers say that the connection is kept
        self.cors_fields = b""  # fields for the current answer's head, each with its line end
        self.is_paused = False  # the client reads more slowly than the server writes
        self._go_on: Callable[[], None] | None = None
        self._unsent_then = self._taken_bytes = 0
        # With a low-water mark of 0, resume means that the kernel has taken everything.
        transport.set_write_buffer_limits(high=UNCOUNTED_BYTES, low=0)

    @property
    def is_last(self) -> bool:
        """Whether the answer that begins now is the connection's last one, so that its head must say it."""
        if self._port.closing:
            self.keep_alive = False
        return not self.keep_alive

    def fields(self) -> bytes:
        """The fields of this answer's head that others lack, each with its line end."""
        if self.is_last:
            return self.cors_fields + b"connection: close\r\n"
        return self.cors_fields + b"connection: keep-alive\r\n" if self.is_1_0 else self.cors_fields

    def write_error(
        self, record: RequestRecord | None, status: int, message: str, fields: bytes = b"", target: bytes = b""
    ) -> None:
        """Write a whole answer that says what is wrong; ``fields`` are further ones of its head, each with its line end.

        ``target`` is the request's, and may be missing.
        """
        self._port.answers.add(str(int(status)))
        body = self._port.apis.error_body(target.decode("latin-1"), message, status)
        if record is not None:
            record.status, record.sent_bytes = status, len(body)
        self._transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%b%bcontent-length: %d\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), fields, self.fields(), len(body), body)
        )

    def write_views(self, pieces: Sequence[Buffer], then: Callable[[], None]) -> None:
        """Write views of memory, and call ``then`` once the kernel has taken the last byte, or the connection has ended.

        The transport keeps a view of the bytes that the socket does not take; memory released earlier would contain
        another client's data by the time it is sent. With a high-water mark of 0 the transport reports an empty buffer.
        """
        transport = self._transport
        transport.set_write_buffer_limits(high=0, low=0)
        transport.writelines(pieces)

        def written() -> None:
            if not transport.is_closing():
                transport.set_write_buffer_limits(high=UNCOUNTED_BYTES, low=0)
            then()

        if transport.get_write_buffer_size() == 0:
            written()
        else:
            self._go_on = written

    def waits_for_reader(self, go_on: Callable[[], None]) -> bool:
        """True if the client reads too slowly; ``go_on`` is then called when it has caught up or disconnected."""
        if self.is_paused:
            self._go_on = go_on
        return self.is_paused

    def pause(self) -> None:
        """The client reads more slowly than the server writes."""
        self.is_paused = True
        self._unsent_then = unsent_bytes(self._transport)
        self._flow.leave_unread(max(0, self._transport.get_write_buffer_size() - self._flow.held_bytes))

    def resume(self) -> None:
        """Go on: the kernel has taken everything, or the connection has ended."""
        self.taken_bytes()
        self.is_paused = False
        self._flow.leave_unread(0)
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on()

    def taken_bytes(self) -> int:
        """The bytes that the client has taken while the writer was paused."""
        if self.is_paused:
            unsent = unsent_bytes(self._transport)
            self._taken_bytes += max(0, self._unsent_then - unsent)
            self._unsent_then = unsent
        return self._taken_bytes
