"""The engine's numbers on the server's metrics page, by the names of Triton's vLLM backend.

The engine reports after each of its steps, in the thread of its loop.
"""

from importlib import import_module
from typing import Any, Dict, List, NamedTuple, Optional

from pybackend_sdk.metrics import Metric, MetricFamily

COUNTERS = {
    "vllm:prompt_tokens_total": "Tokens of prompts that were processed.",
    "vllm:generation_tokens_total": "Tokens that were generated.",
    "vllm:num_preemptions_total": "Requests that lost their place in the cache to others.",
    "vllm:prefix_cache_queries_total": "Tokens of prompts that were looked up in the prefix cache.",
    "vllm:prefix_cache_hits_total": "Tokens of prompts that the prefix cache had.",
}
GAUGES = {
    "vllm:num_requests_running": "Requests that are computed now.",
    "vllm:num_requests_waiting": "Requests that wait in the engine.",
    "vllm:kv_cache_usage_perc": "Use of the key-value cache: 1 is all of it.",
}

# Upper bounds of the buckets are those of the reference's backend, so that dashboards fit.
_FIRST_TOKEN_S = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_TOKEN_S = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
_REQUEST_S = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0]
_SEQUENCES = [1.0, 2.0, 5.0, 10.0, 20.0]


class _Histogram(NamedTuple):
    """A histogram of the metrics page; its bounds are None for tokens, where they depend on the model.

    Its values are either a list of the step's, or a number of each finished request's.
    """

    help: str
    bounds: Optional[List[float]]
    of_step: str = ""
    of_request: str = ""


HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": _Histogram(
        "Time to the first token.", _FIRST_TOKEN_S, of_step="time_to_first_tokens_iter"
    ),
    "vllm:time_per_output_token_seconds": _Histogram(
        "Time between two tokens.", _TOKEN_S, of_step="inter_token_latencies_iter"
    ),
    "vllm:e2e_request_latency_seconds": _Histogram("Time of a request.", _REQUEST_S, of_request="e2e_latency"),
    "vllm:request_queue_time_seconds": _Histogram("Time in the engine's queue.", _REQUEST_S, of_request="queued_time"),
    "vllm:request_inference_time_seconds": _Histogram("Time of computing.", _REQUEST_S, of_request="inference_time"),
    "vllm:request_prefill_time_seconds": _Histogram(
        "Time of computing the prompt.", _REQUEST_S, of_request="prefill_time"
    ),
    "vllm:request_decode_time_seconds": _Histogram(
        "Time of computing the answer.", _REQUEST_S, of_request="decode_time"
    ),
    "vllm:request_prompt_tokens": _Histogram("Tokens of a prompt.", None, of_request="num_prompt_tokens"),
    "vllm:request_generation_tokens": _Histogram("Tokens of an answer.", None, of_request="num_generation_tokens"),
    "vllm:request_params_n": _Histogram("Answers that a request asks for.", _SEQUENCES, of_step="n_params_iter"),
}


class EngineMetrics:
    """All series of a model, which reads and writes at most so many tokens for a request."""

    def __init__(self, labels: Dict[str, str], most_tokens: int) -> None:
        # A family lives as long as its series are used.
        self._families: List[MetricFamily] = []
        self._labels = labels
        self._counters = {name: self._series(name, text, MetricFamily.COUNTER) for name, text in COUNTERS.items()}
        self._gauges = {name: self._series(name, text, MetricFamily.GAUGE) for name, text in GAUGES.items()}
        self._last: Dict[str, float] = dict.fromkeys(GAUGES, 0.0)
        tokens = token_bounds(most_tokens)
        self._histograms = [
            (each, self._series(name, each.help, MetricFamily.HISTOGRAM, each.bounds or tokens))
            for name, each in HISTOGRAMS.items()
        ]

    def _series(self, name: str, text: str, kind: Any, bounds: "Optional[List[float]]" = None) -> Metric:
        family = MetricFamily(name, text, kind)
        self._families.append(family)
        return family.Metric(self._labels, bounds)

    def record(self, scheduler: Any, step: Any) -> None:
        """Take over the numbers of a step: vLLM's ``SchedulerStats`` and ``IterationStats``, each of which may be None."""
        if scheduler is not None:
            self._set("vllm:num_requests_running", scheduler.num_running_reqs)
            self._set("vllm:num_requests_waiting", scheduler.num_waiting_reqs)
            self._set("vllm:kv_cache_usage_perc", scheduler.kv_cache_usage)
            self._add("vllm:prefix_cache_queries_total", scheduler.prefix_cache_stats.queries)
            self._add("vllm:prefix_cache_hits_total", scheduler.prefix_cache_stats.hits)
        if step is not None:
            self._add("vllm:prompt_tokens_total", step.num_prompt_tokens)
            self._add("vllm:generation_tokens_total", step.num_generation_tokens)
            self._add("vllm:num_preemptions_total", step.num_preempted_reqs)
            for histogram, series in self._histograms:
                for value in _values(histogram, step):
                    series.observe(value)

    def _add(self, name: str, number: float) -> None:
        if number:
            self._counters[name].increment(number)

    def _set(self, name: str, number: float) -> None:
        # By differences: the series is the sum of all instances.
        if number != self._last[name]:
            self._gauges[name].increment(number - self._last[name])
            self._last[name] = number


def _values(histogram: _Histogram, step: Any) -> "List[Any]":
    if histogram.of_step:
        return list(getattr(step, histogram.of_step))
    return [getattr(request, histogram.of_request) for request in step.finished_requests]


def token_bounds(most_tokens: int) -> List[float]:
    """1, 2, 5, 10, 20, 50 and so on, up to the most tokens of a request."""
    bounds: List[float] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > most_tokens:
                return bounds or [1.0]
            bounds.append(float(factor * power))
        power *= 10


def stat_logger_factory(model: str, version: str) -> Any:
    """The function that vLLM calls to make the receiver of an engine's numbers."""
    base = import_module("vllm.v1.metrics.loggers").StatLoggerBase

    class _Receiver(base):  # type: ignore[misc, valid-type]  # vLLM's class is known at run time only
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._metrics = EngineMetrics({"model": model, "version": version}, vllm_config.model_config.max_model_len)

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            self._metrics.record(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            """Nothing: the metrics page has no place for settings."""

    return _Receiver
