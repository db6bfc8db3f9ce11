"""The metric families of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from weakref import WeakKeyDictionary

from pybackend.instance.plan import InstanceState
from pybackend.model.latencies import FIRST_RESPONSE_FAMILY, LatencySummaries, QuantileWindow
from pybackend.model.model import Model
from pybackend.model.statistics import FailureReason, ShadowFigures
from pybackend.modelconfig.schema import Scheduling
from pybackend.observability.metrics import Family, Sample, labels_text
from pybackend.scheduler.scheduler import BatchReason
from pybackend.settings import MetricsSettings

_NS_PER_US = 1000

_COUNTS: Sequence[tuple[str, str, str]] = (
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes", "success_count"),
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        "inference_count",
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        "execution_count",
    ),
)
"""Counters of models: name, help text, attribute of their statistics."""

_LATENCIES: Sequence[tuple[str, str, str]] = (
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        "success_ns",
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        "queue_ns",
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        "compute_input_ns",
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        "compute_infer_ns",
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        "compute_output_ns",
    ),
)
"""The same, of nanoseconds that are shown in microseconds."""

_SUMMARIES: Sequence[tuple[str, str, Callable[[LatencySummaries], QuantileWindow], str, str]] = (
    (
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        lambda recent: recent.request,
        "success_count",
        "success_ns",
    ),
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        lambda recent: recent.queue,
        "success_count",
        "queue_ns",
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Summary of compute input duration in microseconds (does not include cached requests)",
        lambda recent: recent.compute_input,
        "executed_count",
        "compute_input_ns",
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Summary of compute inference duration in microseconds (does not include cached requests)",
        lambda recent: recent.compute_infer,
        "executed_count",
        "compute_infer_ns",
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Summary of inference compute output duration in microseconds (does not include cached requests)",
        lambda recent: recent.compute_output,
        "executed_count",
        "compute_output_ns",
    ),
    (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit duration per model, in microseconds",
        lambda recent: recent.cache_hit,
        "cache_hit_count",
        "cache_hit_ns",
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss duration per model, in microseconds",
        lambda recent: recent.cache_miss,
        "cache_miss_count",
        "cache_miss_ns",
    ),
)
"""Summaries: name, help text, recent values, attributes of the statistics for the number and the sum of all values."""

_CACHE_SUMMARIES = "nv_cache_"
_WITHOUT_CACHE = "nv_inference_request_summary_us"

_snapshot_of = attrgetter(
    *(attribute for _, _, attribute in _COUNTS), *(attribute for _, _, attribute in _LATENCIES), "load_duration_ns"
)


class _Labels:
    """The labels of one version's series. Their text is made once, when the page first needs it."""

    def __init__(self, model: Model) -> None:
        self._name, self._version, self._tags = model.name, model.version, model.config.metric_tags

    @cached_property
    def _labels(self) -> dict[str, str]:
        tags = {f"_{key}": value for key, value in self._tags.items()}
        return {"model": self._name, "version": self._version, **tags}

    @cached_property
    def plain(self) -> str:
        return labels_text(self._labels)

    @cached_property
    def of_failures(self) -> list[str]:
        return [self.with_label("reason", reason) for reason in FailureReason]

    @cached_property
    def of_batches(self) -> list[str]:
        return [self.with_label("reason", reason) for reason in BatchReason]

    def with_label(self, name: str, value: str) -> str:
        return labels_text({**self._labels, name: value})


class ModelFamilies:
    """Makes the families of models.

    Args:
        settings: select the families.
    """

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings
        self._labels: WeakKeyDictionary[Model, _Labels] = WeakKeyDictionary()

    def labels_of(self, model: Model) -> str:
        """The labels that all series of a model have, as text."""
        return self._of(model).plain

    def _of(self, model: Model) -> _Labels:
        return self._labels.get(model) or self._labels.setdefault(model, _Labels(model))

    def of(self, models: Sequence[Model]) -> Iterator[Family]:
        """The families of these models.

        Counters are read now, all at once, so that those of a model are consistent; their lines can be written later.
        """
        labels = [self._of(model) for model in models]
        rows = [_snapshot_of(model.statistics) for model in models]
        failures = [tuple(model.statistics.failures.values()) for model in models]
        pending = [model.pending_count for model in models]
        return self._families(models, labels, rows, failures, pending)

    def _families(
        self,
        models: Sequence[Model],
        labels: Sequence[_Labels],
        rows: Sequence[tuple[int, ...]],
        failures: Sequence[tuple[int, ...]],
        pending: Sequence[int],
    ) -> Iterator[Family]:

        def column(index: int, divisor: int) -> Iterator[Sample]:
            return (("", each.plain, row[index] // divisor) for each, row in zip(labels, rows, strict=True))

        for index, (name, text, _) in enumerate(_COUNTS):
            yield Family(name, "counter", text, column(index, 1))
        yield Family(
            "nv_inference_request_failure",
            "counter",
            "Number of failed inference requests, all batch sizes",
            (
                ("", text, count)
                for each, counts in zip(labels, failures, strict=True)
                for text, count in zip(each.of_failures, counts, strict=True)
            ),
        )
        for index, (name, text, _) in enumerate(_LATENCIES, len(_COUNTS)):
            shown = self._settings.counter_latencies
            yield Family(name, "counter", text, column(index, _NS_PER_US) if shown else ())
        yield Family(
            "nv_inference_pending_request_count",
            "gauge",
            "Instantaneous number of pending requests awaiting execution per-model.",
            (("", each.plain, count) for each, count in zip(labels, pending, strict=True)),
        )
        yield Family(
            "nv_model_load_duration_secs",
            "gauge",
            "Model load time in seconds",
            (("", each.plain, row[-1] / 1e9) for each, row in zip(labels, rows, strict=True)),
        )
        if self._settings.histogram_latencies:
            yield Family(
                FIRST_RESPONSE_FAMILY,
                "histogram",
                "Duration from request to first response in milliseconds",
                _first_responses(zip(labels, models, strict=True)),
            )
        if self._settings.summary_latencies:
            yield from self._summaries(list(zip(labels, models, strict=True)))
        yield from _own(list(zip(labels, models, strict=True)))

    def _summaries(self, models: Sequence[tuple[_Labels, Model]]) -> Iterator[Family]:
        any_cached = any(model.config.response_cache_enabled for _, model in models)
        for name, text, window_of, count, total in _SUMMARIES:
            if name.startswith(_CACHE_SUMMARIES):
                if any_cached:
                    cached = [each for each in models if each[1].config.response_cache_enabled]
                    yield Family(name, "summary", text, self._summary(cached, window_of, count, total))
                continue
            shown = models
            if name == _WITHOUT_CACHE:
                shown = [each for each in models if not each[1].config.response_cache_enabled]
            yield Family(name, "summary", text, self._summary(shown, window_of, count, total))

    def _summary(
        self,
        models: Iterable[tuple[_Labels, Model]],
        window_of: Callable[[LatencySummaries], QuantileWindow],
        count: str,
        total: str,
    ) -> Iterator[Sample]:
        shares = self._settings.summary_quantiles
        for labels, model in models:
            statistics = model.statistics
            if statistics.summaries is None:
                continue
            quantiles_ns = window_of(statistics.summaries).quantiles_ns(shares, time.monotonic_ns())
            for share, value_ns in zip(shares, quantiles_ns, strict=True):
                yield "", labels.with_label("quantile", f"{share:g}"), value_ns / _NS_PER_US
            yield "_sum", labels.plain, getattr(statistics, total) / _NS_PER_US
            yield "_count", labels.plain, getattr(statistics, count)


def _first_responses(models: Iterable[tuple[_Labels, Model]]) -> Iterator[Sample]:
    for labels, model in models:
        histogram = model.statistics.first_responses
        if histogram is None:
            continue
        bounds = [*(f"{bound:g}" for bound in histogram.bounds_ms), "+Inf"]
        counts = list(accumulate(histogram.counts))
        for bound, count in zip(bounds, counts, strict=True):
            yield "_bucket", labels.with_label("le", bound), count
        yield "_sum", labels.plain, histogram.sum_ns / 1e6
        yield "_count", labels.plain, counts[-1]


_OWN: Sequence[tuple[str, str, str, Callable[[Model], float]]] = (
    (
        "pybackend_model_output_dropped_lines_total",
        "counter",
        "Number of lines that models printed or logged and that the server's log did not take",
        lambda model: sum(each.output.dropped_lines for each in model.instances),
    ),
    (
        "pybackend_stub_restarts_total",
        "counter",
        "Number of processes of the model that were replaced after they had died",
        lambda model: sum(each.restart_count for each in model.instances),
    ),
    (
        "pybackend_instances",
        "gauge",
        "Number of instances of the model",
        lambda model: len(model.instances),
    ),
    (
        "pybackend_instances_ready",
        "gauge",
        "Number of instances of the model whose processes serve",
        lambda model: sum(each.state is InstanceState.READY for each in model.instances),
    ),
    (
        "pybackend_input_memory_bytes",
        "gauge",
        "Shared memory that the model's inputs use or keep warm, in bytes",
        lambda model: model.input_memory_bytes,
    ),
    (
        "pybackend_output_memory_bytes",
        "gauge",
        "Shared memory that the model's processes have for outputs, in bytes",
        lambda model: model.output_memory_bytes,
    ),
    (
        "pybackend_copied_bytes_total",
        "counter",
        "Size of all tensors that were copied into the model's input memory, in bytes",
        lambda model: model.copied_bytes,
    ),
)
"""Families that the reference lacks: name, type, help text, value."""


def _own(models: Sequence[tuple[_Labels, Model]]) -> Iterator[Family]:
    for name, kind, text, value_of in _OWN:
        yield Family(name, kind, text, (("", labels.plain, value_of(model)) for labels, model in models))
    batching = [each for each in models if each[1].config.scheduling is Scheduling.DYNAMIC_BATCHING]
    if batching:
        yield Family(
            "pybackend_batches_total",
            "counter",
            "Number of batches that the dynamic batcher has sent, by the reason why they did not grow",
            (
                ("", text, model.statistics.batches[reason])
                for labels, model in batching
                for text, reason in zip(labels.of_batches, BatchReason, strict=True)
            ),
        )
    shadows = [(labels, model.statistics.shadow) for labels, model in models if model.statistics.shadow is not None]
    if shadows:
        yield from _of_shadows(shadows)
    confined = [(labels, model.confinement) for labels, model in models if model.confinement is not None]
    if confined:
        yield Family(
            "pybackend_sandbox_missing_layers",
            "gauge",
            "Number of layers of the model's sandbox that are not in force",
            (("", labels.with_label("level", what["level"]), len(what["not_in_force"])) for labels, what in confined),
        )


def _of_shadows(shadows: Sequence[tuple[_Labels, ShadowFigures]]) -> Iterator[Family]:
    yield Family(
        "pybackend_shadow_copies_total",
        "counter",
        "Number of requests that were copied to the version, or would have been and were dropped",
        (
            ("", labels.with_label("result", result), count)
            for labels, figures in shadows
            for result, count in (("sent", figures.sent), ("dropped", figures.dropped))
        ),
    )
    yield Family(
        "pybackend_shadow_answers_total",
        "counter",
        "Number of the version's answers that were compared with those of the clients",
        (
            ("", labels.with_label("result", result), count)
            for labels, figures in shadows
            for result, count in (("same", figures.compared - figures.differed), ("different", figures.differed))
        ),
    )
