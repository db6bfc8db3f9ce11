"""The head of a call: its method, encoding, deadline and metadata, read once for each distinct head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from pybackend.engine.answers import RefusalReason
from pybackend.errors import InferenceError
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.access.restrictions import CREDENTIALS, concealed
from pybackend.frontend.grpc.errors import CallError, http_error, trailers_only
from pybackend.frontend.grpc.length_prefixed import ACCEPTED, ENCODINGS
from pybackend.frontend.request_log import ContextFields, trace_context
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend_http2 import Fields, HeaderBlock, RequestHead, Use

_CALL = re.compile(rb"application/grpc(\+proto)?\s*(;|\Z)", re.IGNORECASE)
"""The content type of a call: messages are in protobuf, and not in JSON or another encoding."""

_USUAL_TYPES = frozenset({b"application/grpc", b"application/grpc+proto"})

FORWARDING_METHODS = frozenset(f"/inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ModelStreamInfer"))
"""Methods whose metadata may become request parameters."""

_OF_GRPC = re.compile(rb"grpc-|(te|content-type)\Z")
"""Metadata that are gRPC's, and not the caller's."""

_UNSAFE = re.compile(rb"[\x00\r\n]")

STATUS_ON_ERROR = b"triton_grpc_error"
"""Metadata with the value ``true`` make errors end a stream."""

_READ = frozenset({b"content-type", b"grpc-encoding", b"grpc-accept-encoding", STATUS_ON_ERROR})
_READ_APART = frozenset({b"grpc-timeout", b"traceparent", b"tracestate"})
"""The metadata that a port reads, whatever its settings are; and those of them that differ from call to call."""

RESTRICTED_PREFIX = b"triton-grpc-protocol-"
"""Metadata that restricted methods need begin with it."""

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])\Z")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class CallRefusal(NamedTuple):
    """The end of a call that cannot be served."""

    status: str  # for the access log
    message: str  # for the log
    answer: HeaderBlock  # a head, and nothing else
    reason: RefusalReason = RefusalReason.MALFORMED  # for the metrics

    @classmethod
    def by(cls, status: GrpcStatus, message: str, reason: RefusalReason = RefusalReason.MALFORMED) -> CallRefusal:
        return cls(status.name, message, trailers_only(status, message), reason)


class CallPolicy:
    """The rules of one port: who may call, and which metadata become request parameters."""

    def __init__(self, guard: Guard | None, forwards: ForwardedHeaders | None) -> None:
        self._guard = guard
        self._forwards = forwards

    def reads(self, name: bytes) -> bool:
        """True if calls are judged by metadata of this name, or get them as request parameters."""
        return (self._guard is not None and name in self._guard.reads) or self.forwards(name)

    def refusal(self, path: str, fields: Fields) -> CallRefusal | None:
        """The end of a call that may not be made; None if it may."""
        denial = None if self._guard is None else self._guard.denial(path, fields)
        if denial is None:
            return None
        status = GrpcStatus.UNAUTHENTICATED if denial.lacks_key else GrpcStatus.UNAVAILABLE
        return CallRefusal.by(status, denial.message, RefusalReason.DENIED)

    def forwards(self, name: bytes) -> bool:
        """True if metadata of this name become request parameters."""
        return self._forwards is not None and self._forwards.takes(name)

    def forwarded(self, path: str, fields: Fields) -> Mapping[str, str] | None:
        """The metadata that become request parameters; a CallError if one has a reserved name."""
        if self._forwards is None or path not in FORWARDING_METHODS:
            return None
        try:
            return self._forwards.of([field for field in fields if not _OF_GRPC.match(field[0])], keeps_blanks=True)
        except InferenceError as error:
            raise CallError.of(error) from None


def use_of_metadata(policy: CallPolicy | None, name: bytes) -> Use:
    """Return the use that a port has for metadata of a name."""
    if name in _READ or (policy is not None and policy.reads(name)):
        return Use.READS
    return Use.READS_APART if name in _READ_APART else Use.IGNORES


def read_metadata(policy: CallPolicy | None, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Read a field of a call as gRPC's own servers do, which bear capitals in names, and blanks at the ends of values.

    The connection's table of fields and its remembered heads last as long as it does. They have digests in place of
    credentials, unless models see these.
    """
    if name[:1] == b":":
        return name, value
    name, value = spelled(policy, name, value)
    if name in CREDENTIALS or name.startswith(RESTRICTED_PREFIX):
        if _UNSAFE.search(value):
            return name, b"\0"  # still malformed, and no secret
        if policy is None or not policy.forwards(name):
            return name, concealed(name, value)
    return name, value


def spelled(policy: CallPolicy | None, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A field's name in lower case, and its value without outer blanks; models get metadata with them."""
    name = name.lower()
    is_for_server = name in CREDENTIALS or name.startswith(RESTRICTED_PREFIX) or _OF_GRPC.match(name)
    if is_for_server or policy is None or not policy.forwards(name):
        value = value.strip(b" \t")
    return name, value


class CallHead:
    """A call's head."""

    __slots__ = ("context", "encoding", "forwarded", "metadata", "path", "refusal", "takes_shortcut", "timeout_s")

    def __init__(self, head: RequestHead, policy: CallPolicy | None = None) -> None:
        self.path = head.path.decode("latin-1")  # ``/package.Service/Method``
        self.metadata = dict(head.fields)  # the other fields, by name; of repeated ones, the last
        # the fields of the trace context; None if there are none
        self.context = context_of(head.fields) if b"traceparent" in self.metadata else None
        # metadata that become parameters of its requests; None for none
        self.forwarded: Mapping[str, str] | None = None
        self.encoding = self.metadata.get(b"grpc-encoding", b"identity")  # how the client compresses messages
        self.timeout_s: float | None = None  # the client's deadline, from the call's beginning; None if it has none
        # a request with this head has taken the shortcut (:mod:`pybackend.frontend.grpc.fast_path`)
        self.takes_shortcut = False
        self.refusal: CallRefusal | None = None  # the end of a call that cannot be served; None if it can
        if policy is not None:
            self.refusal = policy.refusal(self.path, head.fields)
            if self.refusal is not None:
                return
        if head.method != b"POST":
            self.refusal = CallRefusal("HTTP 405", "a gRPC call is a POST request", http_error(405))
            return
        content_type = self.metadata.get(b"content-type", b"")
        if content_type not in _USUAL_TYPES and _CALL.match(content_type) is None:
            self.refusal = CallRefusal(
                "HTTP 415", "the content-type of a gRPC call is application/grpc", http_error(415)
            )
            return
        if self.encoding not in ENCODINGS:
            text = f"Unsupported compression type: {self.encoding.decode('latin-1')}. Use gzip, deflate or identity"
            answer = trailers_only(GrpcStatus.UNIMPLEMENTED, text, (b"grpc-accept-encoding", ACCEPTED))
            self.refusal = CallRefusal(GrpcStatus.UNIMPLEMENTED.name, text, answer)
            return
        timeout = self.metadata.get(b"grpc-timeout")
        if timeout is not None or policy is not None:
            try:
                if policy is not None:
                    self.forwarded = policy.forwarded(self.path, head.fields)
                if timeout is not None:
                    self.timeout_s = _read_timeout(timeout)
            except CallError as error:
                self.refusal = CallRefusal.by(error.status, error.message)


def context_of(fields: Fields) -> ContextFields | None:
    """The fields of the trace context; None if there are none."""
    parents, states = ([value for each, value in fields if each == name] for name in (b"traceparent", b"tracestate"))
    return trace_context(parents, states)


def timeout_of(head: CallHead, apart: Fields) -> float | None:
    """The deadline of a call whose head may lack some fields; a CallError if it is none."""
    timeout_s = head.timeout_s
    for name, value in apart:
        if name == b"grpc-timeout":
            timeout_s = _read_timeout(value)
    return timeout_s


def _read_timeout(value: bytes) -> float:
    found = _TIMEOUT.match(value)
    if found is None:
        text = f"grpc-timeout {value.decode('latin-1')!r} is no time: write up to 8 digits and one of H, M, S, m, u, n"
        raise CallError(GrpcStatus.INTERNAL, text)
    return int(found[1]) * _SECONDS[found[2]]
