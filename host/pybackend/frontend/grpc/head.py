"""The head of a call: its method, encoding, deadline and metadata, read once for each distinct head."""

from __future__ import annotations

import re
from typing import NamedTuple

from pybackend.frontend.grpc.errors import CallError, http_error, trailers_only
from pybackend.frontend.grpc.framing import ACCEPTED, ENCODINGS
from pybackend.http2 import HeaderBlock, RequestHead
from pybackend.protocol.grpc_status import GrpcStatus

_CALL = re.compile(rb"application/grpc(\+proto)?\s*(;|\Z)", re.IGNORECASE)
"""The content type of a call: messages are in protobuf, and not in JSON or another encoding."""

_USUAL_TYPES = frozenset({b"application/grpc", b"application/grpc+proto"})

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])\Z")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Refusal(NamedTuple):
    """The end of a call that cannot be served.

    Attributes:
        status: for the access log.
        message: for the log.
        answer: a head, and nothing else.
    """

    status: str
    message: str
    answer: HeaderBlock


class CallHead:
    """A call's head.

    Attributes:
        path: ``/package.Service/Method``.
        encoding: how the client compresses messages.
        timeout_s: the client's deadline, from the call's beginning; None if it has none.
        metadata: the other fields, by name; of repeated ones, the last.
        refusal: the end of a call that cannot be served; None if it can.
    """

    __slots__ = ("encoding", "metadata", "path", "refusal", "timeout_s")

    def __init__(self, head: RequestHead) -> None:
        self.path = head.path.decode("latin-1")
        self.metadata = dict(head.fields)
        self.encoding = self.metadata.get(b"grpc-encoding", b"identity")
        self.timeout_s: float | None = None
        self.refusal: Refusal | None = None
        if head.method != b"POST":
            self.refusal = Refusal("HTTP 405", "a gRPC call is a POST request", http_error(405))
            return
        content_type = self.metadata.get(b"content-type", b"")
        if content_type not in _USUAL_TYPES and _CALL.match(content_type) is None:
            self.refusal = Refusal("HTTP 415", "the content-type of a gRPC call is application/grpc", http_error(415))
            return
        if self.encoding not in ENCODINGS:
            text = f"Unsupported compression type: {self.encoding.decode('latin-1')}. Use gzip, deflate or identity"
            answer = trailers_only(GrpcStatus.UNIMPLEMENTED, text, (b"grpc-accept-encoding", ACCEPTED))
            self.refusal = Refusal(GrpcStatus.UNIMPLEMENTED.name, text, answer)
        timeout = self.metadata.get(b"grpc-timeout")
        if timeout is not None:
            try:
                self.timeout_s = _timeout(timeout)
            except CallError as error:
                self.refusal = Refusal(error.status.name, error.message, trailers_only(error.status, error.message))


def _timeout(value: bytes) -> float:
    found = _TIMEOUT.match(value)
    if found is None:
        text = f"grpc-timeout {value.decode('latin-1')!r} is no time: write up to 8 digits and one of H, M, S, m, u, n"
        raise CallError(GrpcStatus.INTERNAL, text)
    return int(found[1]) * _SECONDS[found[2]]
