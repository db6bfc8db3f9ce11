"""vLLM's asynchronous engine, on an event loop in a separate thread, and its numbers on the server's metrics page.

Many requests run at a time; the engine joins them. A receiver that reads slowly waits alone: the
engine joins its pieces of text meanwhile. A request that nobody waits for is cancelled, which frees its place in the
engine. If the engine dies, its requests are answered and the process ends: the server starts the instance again.
"""

import asyncio
import inspect
import os
import threading
from importlib import import_module
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from pybackend_backends.text_requests import FINAL, refuse
from pybackend_backends.vllm.generation import Generation
from pybackend_sdk.backend import offer
from pybackend_sdk.error import TritonError
from pybackend_sdk.logger import Logger
from pybackend_sdk.metrics import Metric, MetricFamily
from pybackend_sdk.response_sender import InferenceResponseSender

_WATCH_S = 0.1
"""Between two looks at who still waits, and whether the engine lives."""

_SLOW_S = 0.02
"""Between two offers to a slow receiver."""

_LAST_ANSWERS_S = 10
"""For the requests of a dead engine to get their errors, and for its processes to end."""

MOST_REQUESTS = 1024
"""Most requests in one engine at a time. Others wait in the server's queue, where their priorities and time-outs act.
"""


class Engine:
    """Runs generations on the engine that ``start`` makes in the loop's thread."""

    def __init__(self, start: Callable[[], Any], model: str) -> None:
        self._model = model
        self._dead_error: Any = import_module("vllm.v1.engine.exceptions").EngineDeadError
        self._client_errors = _client_errors()
        self._senders: Dict[asyncio.Task[None], InferenceResponseSender] = {}
        self._places = threading.BoundedSemaphore(MOST_REQUESTS)
        self._count = 0
        self._dying = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._thread.start()
        self._engine: Any = asyncio.run_coroutine_threadsafe(self._started(start), self._loop).result()
        self._watcher = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def submit(self, generation: Generation, sender: InferenceResponseSender) -> None:
        """Begin a request. Waits while the engine has as many as it may."""
        self._places.acquire()
        self._loop.call_soon_threadsafe(self._begin, generation, sender)

    def tokenizer(self) -> Any:
        """The engine's tokenizer."""
        return asyncio.run_coroutine_threadsafe(self._found_tokenizer(), self._loop).result()

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the loop's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @staticmethod
    async def _started(start: Callable[[], Any]) -> Any:
        return start()

    async def _found_tokenizer(self) -> Any:
        found = self._engine.get_tokenizer()
        return await found if inspect.isawaitable(found) else found  # older versions have a coroutine

    def _begin(self, generation: Generation, sender: InferenceResponseSender) -> None:
        self._count += 1
        task = self._loop.create_task(self._generate(generation, sender, f"{self._model}-{self._count}"))
        self._senders[task] = sender
        task.add_done_callback(self._settle)

    async def _generate(self, generation: Generation, sender: InferenceResponseSender, number: str) -> None:
        outputs = self._engine.generate(generation.prompt, generation.sampling, number, lora_request=generation.adapter)
        try:
            async for output in outputs:
                response = generation.form.response(output)
                if output.finished:
                    sender.send(response, FINAL)
                    return
                while not offer(sender, response):  # noqa: ASYNC110  the receiver sends no event
                    await asyncio.sleep(_SLOW_S)
        finally:
            await outputs.aclose()  # leaving the loop early would let the engine go on
        raise RuntimeError("the engine ended the request without a result")

    def _settle(self, task: "asyncio.Task[None]") -> None:
        """Answer a request that did not end by its own last response."""
        sender = self._senders.pop(task)
        self._places.release()
        if task.cancelled():
            refuse(sender, "The request was cancelled while its text was generated.", TritonError.CANCELLED)
            return
        error = task.exception()
        if error is None:
            return
        if isinstance(error, self._dead_error):
            self._die()
            died = (
                f"model '{self._model}': the vLLM engine died while the request was running, and starts again: the server's "
                "log has the reason"
            )
            refuse(sender, died, TritonError.UNAVAILABLE)
        elif isinstance(error, self._client_errors):
            refuse(sender, f"vLLM refuses the request: {error}")
        else:
            cause = error.__cause__ or error  # vLLM wraps unexpected errors
            refuse(sender, f"Error generating stream: {type(cause).__name__}: {cause}", TritonError.INTERNAL)

    async def _watch(self) -> None:
        told: Set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(_WATCH_S)
            told &= self._senders.keys()
            for task, sender in list(self._senders.items()):
                if task not in told and sender.is_cancelled():
                    told.add(task)
                    task.cancel()
            if self._engine.errored:
                self._die()

    def _die(self) -> None:
        if not self._dying:
            self._dying = True
            Logger.log_error(
                f"model '{self._model}': the vLLM engine is dead, and this instance ends to start it again"
            )
            threading.Thread(target=self._exit, name="vllm-end", daemon=True).start()

    def _exit(self) -> None:
        """End the process, in a separate thread: a dead engine may block."""
        ended = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
        try:
            ended.result(_LAST_ANSWERS_S)
        except Exception as error:  # noqa: BLE001  the process ends anyway
            Logger.log_error(
                f"model '{self._model}': the dead vLLM engine did not end in order: {type(error).__name__}: {error}"
            )
        os._exit(1)

    async def _end(self) -> None:
        self._watcher.cancel()
        for task in list(self._senders):
            task.cancel()
        await self._shut_down()

    async def _shut_down(self) -> None:
        while self._senders:
            await asyncio.wait(list(self._senders))
            await asyncio.sleep(0)  # their done callbacks run
        self._engine.shutdown()


def _client_errors() -> "tuple[Any, ...]":
    """The errors by which the installed vLLM tells that a request is wrong."""
    named: Optional[Any] = getattr(import_module("vllm.exceptions"), "VLLMClientError", None)
    return (ValueError,) if named is None else (named, ValueError)


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
