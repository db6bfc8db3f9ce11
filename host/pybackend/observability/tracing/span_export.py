"""Traces as spans of OpenTelemetry, sent to a collector by OTLP over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pybackend.errors import SettingError
from pybackend.observability.tracing.context import TraceContext
from pybackend.observability.tracing.recorder import TraceLossError, TraceSink, wall_offset_ns
from pybackend.observability.tracing.request_trace import Event, RequestTrace, described
from pybackend.observability.tracing.settings import ExportSettings
from pybackend_wire.installation import install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanKind

EXPORT_TIMEOUT_S = 5.0
"""How long one message to the collector may take, repetitions included."""


class SpanExport(TraceSink):
    """Sends spans."""

    def __init__(self, settings: ExportSettings) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import SpanExportResult
        except ImportError as error:
            raise SettingError(
                f"--trace-config=mode=opentelemetry needs packages that are not installed ({error.name}): "
                f"{install_command('otel')}"
            ) from None
        # The exporter logs each attempt that fails. The recorder says it once.
        theirs = logging.getLogger("opentelemetry")
        theirs.propagate = False
        theirs.addHandler(logging.NullHandler())
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        self._settings = settings
        self._resource = Resource.create(dict(settings.resource))
        self._exporter = OTLPSpanExporter(endpoint=settings.url, timeout=EXPORT_TIMEOUT_S)
        self._success = SpanExportResult.SUCCESS

    def write(self, traces: list[RequestTrace]) -> None:
        spans = [span for trace in traces for span in _Spans(trace, self._resource).all()]
        size = self._settings.max_export_batch_size
        for at in range(0, len(spans), size):
            if self._exporter.export(spans[at : at + size]) is not self._success:
                raise TraceLossError(f"the collector at {self._settings.url} does not accept them")

    def interrupt(self) -> None:
        """End an attempt to reach the collector."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _Spans:
    """Makes the spans of one trace."""

    def __init__(self, trace: RequestTrace, resource: Any) -> None:
        self._trace = trace
        self._resource = resource
        self._offset_ns = wall_offset_ns()
        self._events = sorted(trace.events, key=attrgetter("ns"))

    def all(self) -> list[ReadableSpan]:
        """The client's request, the model's part, and the parts of that."""
        from opentelemetry.trace import SpanKind

        trace = self._trace
        own = [event for event in self._events if trace.protocol and event.name.startswith(trace.protocol)]
        rest = [event for event in self._events if event not in own]
        spans = []
        if trace.protocol:
            began_ns, ended_ns = self._events[0].ns, self._events[-1].ns
            spans.append(
                self._made("InferRequest", trace.context, trace.outer, own or rest, SpanKind.SERVER, began_ns, ended_ns)
            )
        outer = trace.context if trace.protocol else trace.outer
        began_ns, ended_ns = rest[0].ns, rest[-1].ns
        spans.append(
            self._made(trace.model_name, trace.model_context, outer, rest, SpanKind.INTERNAL, began_ns, ended_ns)
        )
        if trace.times is not None:
            inside = trace.model_context
            began_ns, infer_start_ns, infer_end_ns = trace.times
            if trace.queued_ns:
                spans.append(self._part("queue", inside, trace.queued_ns, began_ns))
            spans += [
                self._part("compute input", inside, began_ns, infer_start_ns),
                self._part("compute", inside, infer_start_ns, infer_end_ns, trace.compute_context),
                self._part("compute output", inside, infer_end_ns, trace.executed_ns),
            ]
        return spans

    def _part(
        self, name: str, outer: TraceContext, began_ns: int, ended_ns: int, context: TraceContext | None = None
    ) -> ReadableSpan:
        from opentelemetry.trace import SpanKind

        context = context or outer.child()
        return self._made(name, context, outer, (), SpanKind.INTERNAL, began_ns, ended_ns)

    def _made(
        self,
        name: str,
        context: TraceContext,
        outer: TraceContext | None,
        events: Sequence[Event],
        kind: SpanKind,
        began_ns: int,
        ended_ns: int,
    ) -> ReadableSpan:
        from opentelemetry.sdk.trace import Event as SpanEvent
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace.status import Status, StatusCode

        offset_ns = self._offset_ns
        failed = self._trace.error and events
        return ReadableSpan(
            name=name,
            context=_span_context(context),
            parent=None if outer is None else _span_context(outer),
            resource=self._resource,
            attributes=self._attributes() if events else {},
            events=[
                *(SpanEvent(event.name, timestamp=event.ns + offset_ns) for event in events),
                *(self._tensor_events() if context is self._trace.model_context else ()),
            ],
            kind=kind,
            status=Status(StatusCode.ERROR, self._trace.error) if failed else Status(),
            start_time=began_ns + offset_ns,
            end_time=max(began_ns, ended_ns) + offset_ns,
            instrumentation_scope=InstrumentationScope("pybackend"),
        )

    def _tensor_events(self) -> list[Any]:
        from opentelemetry.sdk.trace import Event as SpanEvent

        return [
            SpanEvent(tensor.activity, described(tensor), timestamp=tensor.ns + self._offset_ns)
            for tensor in self._trace.tensors
        ]

    def _attributes(self) -> dict[str, str | int]:
        trace = self._trace
        attributes: dict[str, str | int] = {
            "triton.model_name": trace.model_name,
            "triton.model_version": int(trace.model_version),
            "triton.trace_id": trace.number,
            "triton.trace_parent_id": 0 if trace.parent is None else trace.parent.number,
        }
        if trace.namespace:
            attributes["triton.namespace"] = trace.namespace
        if trace.request_id:
            attributes["triton.request_id"] = trace.request_id
        return attributes


def _span_context(context: TraceContext) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
