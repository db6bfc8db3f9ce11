"""Follows requests beside their answers: a verbose line at the beginning, a line of the access log at the end.

While neither is wanted, a front end reads one attribute per request, and makes no object.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from pybackend.inference.request import InferenceRequest
from pybackend.observability.access_log import AccessLog, AccessRecord
from pybackend.observability.logging import LOG
from pybackend.observability.tracing.context import read_context
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.observability.tracing.settings import TraceMode
from pybackend.observability.tracing.tracer import Tracer

log = logging.getLogger(__name__)

_LONGEST_PATH, _LONGEST_ID = 1000, 200

RECORD = "pybackend.record"
"""Key of the record in the ASGI scope of a request that is followed."""

_NAMES = {"http": "HTTP", "grpc": "gRPC"}


class RequestLog:
    """Shared by all connections of a server.

    While it is ``on``, front ends begin a :class:`RequestRecord` for each request.
    """

    def __init__(self, access: AccessLog | None = None) -> None:
        self.on = False
        self.access = access

    def open(self) -> None:
        """Follow the settings of the log from now on."""
        LOG.watch(self._update)
        self._update()

    def close(self) -> None:
        """Write what waits, and follow the settings no longer."""
        LOG.unwatch(self._update)
        self.on = False
        if self.access is not None:
            self.access.flush()

    def _update(self) -> None:
        self.on = self.access is not None or LOG.settings.verbose_level > 0

    def _announce(self, protocol: str, method: bytes, path: str) -> None:
        log.debug("%s request: %s %s", _NAMES[protocol], method.decode("latin-1"), path)

    def begin_traced(self, record: RequestRecord | None, trace: RequestTrace) -> RequestRecord:
        """The record of a request that is traced; ``record`` is the one that it has, None if it has none yet."""
        record = record or RequestRecord(self, trace.protocol.lower(), "", "", "")
        record.trace = trace
        return record

    def begin(self, protocol: str, client: str, method: bytes, target: bytes, received_bytes: int = 0) -> RequestRecord:
        """A request whose head has arrived."""
        path = target.partition(b"?")[0][:_LONGEST_PATH].decode("latin-1")
        if LOG.settings.verbose_level > 0:
            self._announce(protocol, method, path)
        record = RequestRecord(self, protocol, client, method.decode("latin-1"), path)
        record.received_bytes = received_bytes
        return record


class RequestRecord:
    """A request and its answer."""

    def __init__(self, request_log: RequestLog, protocol: str, client: str, method: str, path: str) -> None:
        self._request_log = request_log
        self._protocol = protocol
        self._client = client
        self._method = method
        self._path = path
        self._began_ns = time.monotonic_ns()
        # facts about the request, as far as they are known, and the same for all requests of a stream: ``model``,
        # ``version``, ``request_id``, ``trace_id``
        self.about: dict[str, str] = {}
        self.status: int | str | None = None  # of the answer; None before there is one
        self.received_bytes = 0  # size of the request's body
        self.sent_bytes = 0  # size of the answer's body
        self.trace: RequestTrace | None = None  # its trace; None if it is not traced, or its trace does not end with it

    def asks(self, model: str, version: str = "", request_id: str = "") -> None:
        self._note("model", model)
        self._note("version", version)
        self._note("request_id", request_id)

    def continues(self, traceparent: bytes | None) -> None:
        """Note the trace to which the request belongs, whether or not this server records it."""
        context = read_context(traceparent)
        if context is not None:
            self._note("trace_id", f"{context.trace_id:032x}")

    def _note(self, name: str, value: str) -> None:
        if self.about.setdefault(name, value[:_LONGEST_ID]) != value[:_LONGEST_ID]:
            self.about[name] = ""  # several requests of one stream

    @property
    def traceparent(self) -> bytes:
        """The field ``traceparent`` of the answer, empty if it has none."""
        trace = self.trace
        if trace is None or trace.settings.mode is not TraceMode.OPENTELEMETRY:
            return b""
        return trace.context.traceparent.encode()

    def end(self) -> None:
        """The answer was handed over to be sent, or will never be."""
        if self.trace is not None:
            self.trace.sent()
            self.continues(self.traceparent)
        access = self._request_log.access
        if access is not None:
            access.add(
                AccessRecord(
                    self._protocol,
                    self._client,
                    self._method,
                    self._path,
                    self.status,
                    self.received_bytes,
                    self.sent_bytes,
                    time.monotonic_ns() - self._began_ns,
                    time.time(),
                    {name: value for name, value in self.about.items() if value},
                )
            )


ContextFields = tuple[bytes, bytes]
"""The fields ``traceparent`` and ``tracestate`` of a request; the second may be empty."""


def trace_context(parents: Sequence[bytes], states: Sequence[bytes]) -> ContextFields | None:
    """The trace context in the fields of a head.

    If there are several values of ``traceparent``, none counts: nobody knows which one is right.
    """
    return (parents[0], b",".join(states)) if len(parents) == 1 and parents[0] else None


def begin_trace(
    tracer: Tracer,
    request: InferenceRequest,
    model: str,
    protocol: str,
    fields: ContextFields | None,
    began_ns: int = 0,
    *,
    sends: bool = True,
) -> RequestTrace | None:
    """Begin the trace of a complete request that is about to be submitted; None if it is not sampled.

    Not for the hot path.

    ``model`` is its full name, ``protocol`` ``HTTP`` or ``GRPC``. The request's first bytes arrived at ``began_ns`` by
    ``time.monotonic_ns()``; 0 for now. With ``sends``, the front end calls :meth:`RequestTrace.sent`.
    """
    if not tracer.active:
        return None
    outer = read_context(*fields) if fields is not None and tracer.continues else None
    trace: RequestTrace | None = None
    if outer is not None:
        trace = tracer.go_on(model, protocol, outer, sends=sends)
    elif tracer.takes(model):
        trace = tracer.begin(model, protocol, sends=sends)
    if trace is not None:
        request.trace = trace
        now_ns = time.monotonic_ns()
        reading = "RECV" if protocol == "HTTP" else "WAITREAD"
        trace.mark(f"{protocol}_{reading}_START", began_ns or now_ns)
        trace.mark(f"{protocol}_{reading}_END", now_ns)
    return trace
