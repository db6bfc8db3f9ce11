"""Begins the traces of clients' requests, for all front ends."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pybackend.inference.request import InferenceRequest
from pybackend.observability.tracing.context import read_context
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.observability.tracing.tracer import Tracer

ContextFields = tuple[bytes, bytes]
"""The fields ``traceparent`` and ``tracestate`` of a request; the second may be empty."""


def trace_context(parents: Sequence[bytes], states: Sequence[bytes]) -> ContextFields | None:
    """The trace context in the fields of a head.

    Args:
        parents: values of ``traceparent``. If there are several, none counts: nobody knows which one is right.
        states: values of ``tracestate``.
    """
    return (parents[0], b",".join(states)) if len(parents) == 1 and parents[0] else None


def begin_trace(
    tracer: Tracer,
    request: InferenceRequest,
    model: str,
    door: str,
    *,
    began_ns: int = 0,
    fields: ContextFields | None = None,
    sends: bool = True,
) -> RequestTrace | None:
    """Begin the trace of a complete request that is about to be submitted.

    Args:
        tracer: decides; it is active, and has taken a request without ``fields``.
        request: gets the trace.
        model: the full name of the model that it asks.
        door: ``HTTP`` or ``GRPC``.
        began_ns: when its first bytes arrived, by ``time.monotonic_ns()``; 0 for now.
        fields: of the request; None if it has no trace context.
        sends: the front end calls :meth:`RequestTrace.sent`.

    Returns:
        The trace, which is also in the request; None if the request is not sampled.
    """
    outer = read_context(*fields) if fields is not None and tracer.continues else None
    trace: RequestTrace | None
    if outer is not None:
        trace = tracer.go_on(model, door, outer, sends=sends)
    elif fields is None or tracer.takes(model):
        trace = tracer.begin(model, door, sends=sends)
    else:
        trace = None
    if trace is not None:
        request.trace = trace
        now_ns = time.monotonic_ns()
        reading = "RECV" if door == "HTTP" else "WAITREAD"
        trace.mark(f"{door}_{reading}_START", began_ns or now_ns)
        trace.mark(f"{door}_{reading}_END", now_ns)
    return trace


def is_chosen(tracer: Tracer, model: str, fields: ContextFields | None) -> bool:
    """Whether a request may be traced, so that :func:`begin_trace` decides; not for the hot path."""
    return tracer.active and (fields is not None or tracer.takes(model))
