"""How a call ends: a status and a message, as trailers."""

from __future__ import annotations

from functools import lru_cache

from pybackend.errors import InferenceError
from pybackend.frontend.request_log import RequestRecord
from pybackend.protocol.grpc.status import STATUS, GrpcStatus
from pybackend_http2 import HeaderBlock

_CONTENT_TYPE = (b"content-type", b"application/grpc")
_OK = (b":status", b"200")

HEAD = HeaderBlock([_OK, _CONTENT_TYPE])
"""The head of nearly every answer with messages."""


def answer_head(record: RequestRecord | None, coding: str = "") -> HeaderBlock:
    """The head of an answer with messages, of a call that may have a trace. An empty coding is none."""
    traceparent = b"" if record is None else record.traceparent
    if not (traceparent or coding):
        return HEAD
    encoding = [(b"grpc-encoding", coding.encode())] if coding else []
    context = [(b"traceparent", traceparent)] if traceparent else []
    return HeaderBlock([_OK, _CONTENT_TYPE, *encoding, *context])


LONGEST_MESSAGE_BYTES = 2048
"""The longest status message. With every byte as ``%XX`` it fits the 8 KB of trailers that clients accept."""

_SPACE = 0x20

_PLAIN = frozenset(range(_SPACE, 0x7F)) - {ord("%")}


class CallError(Exception):
    """A call that ends with a status other than OK."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @classmethod
    def of(cls, error: InferenceError) -> CallError:
        return cls(STATUS[error.code], error.message)


@lru_cache(maxsize=256)
def trailers(status: GrpcStatus, message: str = "") -> HeaderBlock:
    """The trailers that end an answer."""
    return HeaderBlock(_fields(status, message))


@lru_cache(maxsize=256)
def trailers_only(status: GrpcStatus, message: str = "", *more: tuple[bytes, bytes]) -> HeaderBlock:
    """Head and trailers in one block, for an answer without messages."""
    return HeaderBlock([_OK, _CONTENT_TYPE, *_fields(status, message), *more])


def http_error(status: int) -> HeaderBlock:
    """The answer to a request that is no gRPC call."""
    return HeaderBlock([(b":status", b"%d" % status), (b"content-length", b"0")])


def _fields(status: GrpcStatus, message: str) -> list[tuple[bytes, bytes]]:
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        fields.append((b"grpc-message", _percent_encoded(message)))
    return fields


def _percent_encoded(message: str) -> bytes:
    """The text as gRPC writes it in a field: printable ASCII without ``%``, all other bytes as ``%XX``."""
    text = message.encode("utf-8", "replace")
    if len(text) > LONGEST_MESSAGE_BYTES:
        text = text[:LONGEST_MESSAGE_BYTES].decode("utf-8", "ignore").encode() + b" ..."
    last = len(text) - 1
    return b"".join(
        b"%c" % byte if byte in _PLAIN and (byte != _SPACE or 0 < at < last) else b"%%%02X" % byte
        for at, byte in enumerate(text)
    )


SHUTTING_DOWN = CallError(
    GrpcStatus.UNAVAILABLE, "GRPC server is shutting down and has stopped accepting new requests."
)
"""For calls that come, or wait for messages, while the server stops."""

INTERNAL = CallError(GrpcStatus.INTERNAL, "internal error: see the server's log")
"""For failures that are nobody's but the server's."""

OK_TRAILERS = trailers(GrpcStatus.OK)
"""The end of a successful call."""
