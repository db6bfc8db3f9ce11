"""Makes the tracer of a server from its settings."""

from __future__ import annotations

from pathlib import Path

from pybackend.errors import ServerError
from pybackend.tracing.recorder import Recorder
from pybackend.tracing.settings import TraceMode, TraceSettings

_MOST_WAITING = 10_000
_FILE_PERIOD_S = 0.05


def make_recorder(settings: TraceSettings) -> Recorder | None:
    """The recorder; None if traces have no place to go.

    Raises:
        ServerError: the settings do not fit together, the file cannot be written, or a package is missing.
    """
    if settings.invalid_reason:
        raise ServerError(f"Error: --trace-config: {settings.invalid_reason}. Add --trace-config=triton,file=FILE")
    if settings.mode is TraceMode.OPENTELEMETRY:
        from pybackend.tracing.span_export import SpanExport

        export = settings.export
        # A request that ran has five spans.
        return Recorder(
            SpanExport(export),
            most_waiting=max(1, export.max_queue_size // 5),
            period_s=export.schedule_delay_ms / 1000,
            batch_size=max(1, export.max_export_batch_size // 5),
        )
    if not settings.file:
        return None
    from pybackend.tracing.trace_file import TraceFile

    return Recorder(
        TraceFile(Path(settings.file).absolute()),
        most_waiting=_MOST_WAITING,
        period_s=_FILE_PERIOD_S,
        batch_size=_MOST_WAITING,
    )
