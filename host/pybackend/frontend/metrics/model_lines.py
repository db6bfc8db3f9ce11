"""The counters and gauges of versions as lines: written once, and again when their values have changed.

Most versions answer nothing between two readings of the metrics page, so a page costs little more than a comparison for
each figure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, itemgetter
from weakref import WeakKeyDictionary

from pybackend.engine.figures import VersionFigures
from pybackend.observability.metrics import head_text, labels_text, number_text

_NS_PER_US = 1000

_VERSIONS_AT_ONCE = 16
"""A pause is possible after so many versions: reading one takes up to 20 microseconds."""

Figure = float | tuple[tuple[str, float], ...]
"""The value of a version's only series in a family; or label values and values of its series, of which there may be
none."""


class ModelLabels:
    """The labels of one version. Each text is made once, when the page first needs it."""

    def __init__(self, version: VersionFigures) -> None:
        self._name, self._version, self._tags = version.name, version.version, version.config.metric_tags
        self._namespace = version.namespace
        self._texts: dict[tuple[str, str], str] = {}

    @cached_property
    def _labels(self) -> dict[str, str]:
        tags = {f"_{key}": value for key, value in self._tags.items()}
        namespace = {"namespace": self._namespace} if self._namespace else {}
        return {"model": self._name, "version": self._version, **namespace, **tags}

    @cached_property
    def plain(self) -> str:
        """The labels that all series of the version have."""
        return labels_text(self._labels)

    def with_label(self, name: str, value: str) -> str:
        """These labels and one more, of which there must be few values: all texts are kept."""
        text = self._texts.get((name, value))
        if text is None:
            text = self._texts[name, value] = labels_text({**self._labels, name: value})
        return text


@dataclass(frozen=True)
class _ModelFamily:
    """A family of versions.

    ``source`` is the attribute of a version that has its figure, or a function that reads it. A ``label`` tells a
    version's series apart, if it has several. The settings may leave out latencies, and the page has a rare family
    only if there are series.
    """

    name: str
    kind: str
    source: str | Callable[[VersionFigures], Figure]
    help: str
    label: str = ""
    is_latency: bool = False
    is_rare: bool = False

    def lines(self, labels: ModelLabels, figure: Figure) -> str:
        if not isinstance(figure, tuple):
            return f"{self.name}{labels.plain} {number_text(figure)}\n"
        return "".join(
            f"{self.name}{labels.with_label(self.label, key)} {number_text(value)}\n" for key, value in figure
        )


def _us(attribute: str) -> Callable[[VersionFigures], float]:
    """Reads nanoseconds of the statistics as whole microseconds."""
    nanoseconds: Callable[[VersionFigures], int] = attrgetter(f"statistics.{attribute}")
    return lambda version: nanoseconds(version) // _NS_PER_US


def _shadow_copies(version: VersionFigures) -> Figure:
    figures = version.statistics.shadow
    return () if figures is None else (("sent", figures.sent), ("dropped", figures.dropped))


def _shadow_answers(version: VersionFigures) -> Figure:
    figures = version.statistics.shadow
    if figures is None:
        return ()
    return ("same", figures.compared - figures.differed), ("different", figures.differed)


def _missing_layers(version: VersionFigures) -> Figure:
    confinement = version.confinement
    return () if confinement is None else ((confinement["level"], len(confinement["not_in_force"])),)


_FAMILIES: Sequence[_ModelFamily] = (
    _ModelFamily(
        "nv_inference_request_success",
        "counter",
        "statistics.success_count",
        "Number of successful inference requests, all batch sizes",
    ),
    _ModelFamily(
        "nv_inference_count",
        "counter",
        "statistics.inference_count",
        "Number of inferences performed (does not include cached requests)",
    ),
    _ModelFamily(
        "nv_inference_exec_count",
        "counter",
        "statistics.execution_count",
        "Number of model executions performed (does not include cached requests)",
    ),
    _ModelFamily(
        "nv_inference_request_failure",
        "counter",
        lambda version: tuple(version.statistics.failures.items()),
        "Number of failed inference requests, all batch sizes",
        label="reason",
    ),
    _ModelFamily(
        "nv_inference_request_duration_us",
        "counter",
        _us("success_ns"),
        "Cumulative inference request duration in microseconds (includes cached requests)",
        is_latency=True,
    ),
    _ModelFamily(
        "nv_inference_queue_duration_us",
        "counter",
        _us("queue_ns"),
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        is_latency=True,
    ),
    _ModelFamily(
        "nv_inference_compute_input_duration_us",
        "counter",
        _us("compute_input_ns"),
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        is_latency=True,
    ),
    _ModelFamily(
        "nv_inference_compute_infer_duration_us",
        "counter",
        _us("compute_infer_ns"),
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        is_latency=True,
    ),
    _ModelFamily(
        "nv_inference_compute_output_duration_us",
        "counter",
        _us("compute_output_ns"),
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        is_latency=True,
    ),
    _ModelFamily(
        "nv_inference_pending_request_count",
        "gauge",
        "pending_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
    ),
    _ModelFamily(
        "nv_model_load_duration_secs",
        "gauge",
        lambda version: version.statistics.load_duration_ns / 1e9,
        "Model load time in seconds",
    ),
    _ModelFamily(
        "pybackend_model_output_dropped_lines_total",
        "counter",
        "dropped_lines",
        "Number of lines that models printed or logged and that the server's log did not take",
    ),
    _ModelFamily(
        "pybackend_stub_restarts_total",
        "counter",
        "restart_count",
        "Number of processes of the model that were replaced after they had died",
    ),
    _ModelFamily(
        "pybackend_stub_renewals_total",
        "counter",
        "renewal_count",
        "Number of processes of the model that have made place for a new one, for their requests or their size",
    ),
    _ModelFamily("pybackend_instances", "gauge", "instance_count", "Number of instances of the model"),
    _ModelFamily(
        "pybackend_instances_ready", "gauge", "ready_count", "Number of instances of the model whose processes serve"
    ),
    _ModelFamily("pybackend_executions_running", "gauge", "running_count", "Number of calls of execute that run now"),
    _ModelFamily(
        "pybackend_oldest_execution_seconds",
        "gauge",
        "oldest_execution_s",
        "How long the oldest of these calls has run, in seconds, or 0",
    ),
    _ModelFamily(
        "pybackend_input_memory_bytes",
        "gauge",
        "input_memory_bytes",
        "Shared memory that the model's inputs use or keep warm, in bytes",
    ),
    _ModelFamily(
        "pybackend_output_memory_bytes",
        "gauge",
        "output_memory_bytes",
        "Shared memory that the model's processes have for outputs, in bytes",
    ),
    _ModelFamily(
        "pybackend_copied_bytes_total",
        "counter",
        "copied_bytes",
        "Size of all tensors that were copied into the model's input memory, in bytes",
    ),
    _ModelFamily(
        "pybackend_batches_total",
        "counter",
        "batches",
        "Number of batches that the dynamic batcher has sent, by the reason why they did not grow",
        label="reason",
        is_rare=True,
    ),
    _ModelFamily(
        "pybackend_shadow_copies_total",
        "counter",
        _shadow_copies,
        "Number of requests that were copied to the version, or would have been and were dropped",
        label="result",
        is_rare=True,
    ),
    _ModelFamily(
        "pybackend_shadow_answers_total",
        "counter",
        _shadow_answers,
        "Number of the version's answers that were compared with those of the clients",
        label="result",
        is_rare=True,
    ),
    _ModelFamily(
        "pybackend_recent_execution_seconds",
        "summary",
        lambda version: version.statistics.recent.quantiles_s(version.statistics.success_count),
        "Quantiles of the times in execute of the last 512 executions that succeeded",
        label="quantile",
        is_latency=True,
        is_rare=True,
    ),
    _ModelFamily(
        "pybackend_sandbox_missing_layers",
        "gauge",
        _missing_layers,
        "Number of layers of the model's sandbox that are not in force",
        label="level",
        is_rare=True,
    ),
)
"""Names and help texts of the first eleven are the reference's."""

_READERS: Sequence[Callable[[VersionFigures], Figure]] = tuple(
    attrgetter(family.source) if isinstance(family.source, str) else family.source for family in _FAMILIES
)
_NOTHING = ((),) * len(_FAMILIES)


class _Written:
    """One version's figures as they were last read, and their lines by family."""

    def __init__(self, version: VersionFigures) -> None:
        self.labels = ModelLabels(version)
        self._figures: tuple[Figure, ...] = _NOTHING
        self._lines: tuple[str, ...] = ("",) * len(_FAMILIES)

    def read(self, version: VersionFigures) -> tuple[str, ...]:
        """The lines as they are now."""
        figures = tuple([read(version) for read in _READERS])
        if figures != self._figures:
            self._lines = tuple(
                [
                    lines if figure == before else family.lines(self.labels, figure)
                    for family, figure, before, lines in zip(
                        _FAMILIES, figures, self._figures, self._lines, strict=True
                    )
                ]
            )
            self._figures = figures
        return self._lines


class ModelLines:
    """Writes the counters and gauges of versions."""

    def __init__(self, *, with_latencies: bool) -> None:
        self._with_latencies = with_latencies
        self._written: WeakKeyDictionary[object, _Written] = WeakKeyDictionary()

    def labels_of(self, version: VersionFigures) -> ModelLabels:
        return self._of(version).labels

    def text(self, versions: Sequence[VersionFigures]) -> Iterator[str]:
        """The families of these versions, piece by piece.

        All figures of a version are read at the same time, so that they are consistent. Other work may run between any
        two pieces; the first ones are empty and mean only that.
        """
        rows = []
        for start in range(0, len(versions), _VERSIONS_AT_ONCE):
            rows += [self._of(version).read(version) for version in versions[start : start + _VERSIONS_AT_ONCE]]
            yield ""
        for index, family in enumerate(_FAMILIES):
            if family.is_latency and not self._with_latencies:
                continue
            pieces = self._pieces(rows, index)
            if family.is_rare:
                pieces = [piece for piece in pieces if piece]
                if not pieces:
                    continue
            yield head_text(family.name, family.kind, family.help)
            yield from pieces

    @staticmethod
    def _pieces(rows: Sequence[tuple[str, ...]], index: int) -> list[str]:
        """The lines of one family, several versions in a piece."""
        lines_of = itemgetter(index)
        return [
            "".join(map(lines_of, rows[start : start + _VERSIONS_AT_ONCE]))
            for start in range(0, len(rows), _VERSIONS_AT_ONCE)
        ]

    def _of(self, version: VersionFigures) -> _Written:
        identity = version.identity
        return self._written.get(identity) or self._written.setdefault(identity, _Written(version))
