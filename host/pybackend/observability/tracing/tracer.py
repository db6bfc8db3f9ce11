"""Decides which requests are traced, and makes the recorder.

A request that is not traced costs a few attributes and one subtraction.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from pybackend.errors import SettingError
from pybackend.observability.tracing.context import TraceContext, new_context
from pybackend.observability.tracing.recorder import Recorder
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.observability.tracing.settings import TraceMode, TraceSettings, TraceSettingsBook

_OFF = TraceSettings()

MOST_RECENT = 128
"""The traces that are kept in memory."""

_MOST_EVENTS, _LONGEST_ID, _LONGEST_ERROR = 64, 200, 500


class _Sampler:
    """Chooses every n-th request.

    ``count`` is how many more requests may be chosen, -1 for any number; ``left`` counts the requests until the next
    one.
    """

    __slots__ = ("count", "left", "settings", "takes_any")

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self.count = settings.count
        self.takes_any = bool(settings.levels) and settings.rate > 0
        self.left = settings.rate

    def renew(self) -> bool:
        """Whether the request that ends a round is traced; another round begins."""
        self.left = self.settings.rate
        if not self.takes_any or self.count == 0:
            return False
        if self.count > 0:
            self.count -= 1
        return True


class _Recent:
    """The part of a finished trace that is kept."""

    __slots__ = ("_error", "_events", "_model", "_number", "_parent", "_request_id")

    def __init__(self, trace: RequestTrace) -> None:
        self._number = trace.number
        self._parent = None if trace.parent is None else trace.parent.number
        self._model = (trace.namespace, trace.model_name, trace.model_version)
        self._request_id, self._error = trace.request_id[:_LONGEST_ID], trace.error[:_LONGEST_ERROR]
        events, half = trace.events, _MOST_EVENTS // 2
        self._events = events if len(events) <= _MOST_EVENTS else events[:half] + events[-half:]

    def to_document(self) -> dict[str, Any]:
        namespace, model, version = self._model
        return {
            "id": self._number,
            "parent_id": self._parent,
            **({"namespace": namespace} if namespace else {}),
            "model_name": model,
            "model_version": version,
            "request_id": self._request_id,
            "error": self._error,
            "timestamps": [{"name": each.name, "ns": each.ns} for each in sorted(self._events, key=attrgetter("ns"))],
        }


class Tracer:
    """The traces of one server.

    If ``active``, some request may be traced: front ends read this before they ask. If it ``continues``, contexts
    that clients send are continued.
    """

    def __init__(self, settings: TraceSettings = _OFF, recorder: Recorder | None = None) -> None:
        self._book = TraceSettingsBook(settings)
        self._recorder = recorder
        self._recent: deque[_Recent] = deque(maxlen=MOST_RECENT)
        self.continues = settings.mode is TraceMode.OPENTELEMETRY
        self._server = _Sampler(settings)
        self._models: dict[str, _Sampler] = {}
        self.active = False
        self._update()

    # Settings

    def settings_of(self, model_name: str = "") -> TraceSettings:
        """The settings of a model, or of the whole server for ``""``; the count is the remaining one."""
        sampler = self._models.get(model_name, self._server)
        return replace(self._book.of(model_name), count=sampler.count)

    def change(self, model_name: str, changes: Mapping[str, Any]) -> None:
        """Change settings of a model, or of the whole server for ``""``; see :meth:`TraceSettingsBook.change`."""
        self._book.change(model_name, changes)
        if not model_name:
            self._server = _Sampler(self._book.of())
            self._models = {name: self._renewed(name) for name in self._book.models}
        elif model_name in self._book.models:
            self._models[model_name] = _Sampler(self._book.of(model_name))
        else:
            self._models.pop(model_name, None)
        self._update()

    def _renewed(self, model_name: str) -> _Sampler:
        """The sampler of a model after a change for the whole server; it goes on if nothing changed for the model."""
        settings = self._book.of(model_name)
        present = self._models.get(model_name)
        return present if present is not None and present.settings == settings else _Sampler(settings)

    def _update(self) -> None:
        samplers = [self._server, *self._models.values()]
        has_place = self._recorder is not None or self._server.settings.mode is TraceMode.MEMORY
        self.active = has_place and any(
            (each.takes_any and each.count) or (self.continues and each.settings.levels) for each in samplers
        )

    # Requests

    def takes(self, model_name: str) -> bool:
        """Whether the next request for a model is sampled. Front ends ask this for each request without a context."""
        sampler = self._models.get(model_name, self._server) if self._models else self._server
        sampler.left -= 1
        return sampler.left <= 0 and sampler.renew()

    def begin(self, model_name: str, protocol: str, *, sends: bool) -> RequestTrace:
        """The record of a client's request that :meth:`takes` has sampled.

        The front end ``sends`` if it says when the answer was sent.
        """
        sampler = self._models.get(model_name, self._server)
        if not sampler.count:
            self._update()
        return RequestTrace(sampler.settings, self._finish, protocol=protocol, context=new_context(), sends=sends)

    def go_on(self, model_name: str, protocol: str, outer: TraceContext, *, sends: bool) -> RequestTrace | None:
        """The record of a client's request that is part of the client's trace.

        None if the client does not record it.
        """
        settings = self._models.get(model_name, self._server).settings
        if not outer.sampled or not settings.levels:
            return None
        return RequestTrace(settings, self._finish, protocol=protocol, outer=outer, context=outer.child(), sends=sends)

    def recent(self) -> list[dict[str, Any]]:
        """The last traces that have finished, as plain values without tensors; children come before their parents."""
        return [each.to_document() for each in self._recent]

    def _finish(self, trace: RequestTrace) -> None:
        self._recent.append(_Recent(trace))
        if self._recorder is not None:
            self._recorder.add(trace)


_MOST_WAITING = 10_000
_FILE_PERIOD_S = 0.05


def make_recorder(settings: TraceSettings) -> Recorder | None:
    """The recorder; None if traces have no place to go."""
    if settings.invalid_reason:
        raise SettingError(f"--trace-config: {settings.invalid_reason}. Add --trace-config=triton,file=FILE")
    if settings.mode is TraceMode.OPENTELEMETRY:
        from pybackend.observability.tracing.span_export import SpanExport

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
    from pybackend.observability.tracing.trace_file import TraceFile

    return Recorder(
        TraceFile(Path(settings.file).absolute()),
        most_waiting=_MOST_WAITING,
        period_s=_FILE_PERIOD_S,
        batch_size=_MOST_WAITING,
    )
