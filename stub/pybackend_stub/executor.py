"""Runs ``execute`` on the requests of one message and turns the outcome into results."""

import inspect
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.execution import (
    Unanswered,
    check_decoupled,
    check_returned,
    log_rescheduling,
    release_streams,
    rescheduled,
)
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_stub.channel import MOST_TEXT, HostGone
from pybackend_stub.error_log import ErrorLog
from pybackend_stub.model_output import EXECUTING, ids_of
from pybackend_stub.results import AnswerQueue, ResultWriter, text_length
from pybackend_stub.tensor_io import TensorReader
from pybackend_wire.errors import ErrorCode
from pybackend_wire.host_messages import Initialize
from pybackend_wire.messages import RequestResult

if TYPE_CHECKING:
    from pybackend_sdk.response_sender import ResponseStream
    from pybackend_stub.coroutines import CoroutineRunner

Refused = Dict[int, RequestResult]
"""The results of requests that could not be read and are not executed, by their index."""

_NONE: Refused = {}

MUCH_TEXT = 32 * 1024
"""An answer whose errors and parameters have more characters than this leaves at once: frames are bounded."""


class ModelExecutor:
    """Executes batches on one model object. Models say by ``plan`` how they answer."""

    def __init__(
        self,
        model: Any,
        reader: TensorReader,
        results: ResultWriter,
        answers: AnswerQueue,
        errors: ErrorLog,
        plan: Initialize,
    ) -> None:
        self._model = model
        self._reader = reader
        self._results = results
        self._answers = answers
        self._errors = errors
        self._reschedules = plan.reschedules  # which requests is known when ``execute`` has ended
        self._overlaps = (plan.decoupled or plan.concurrency > 1) and not plan.reschedules
        self.steps: Any = None
        """The steps that follow the next execution in this process, see :mod:`pybackend_stub.steps`; None for none."""
        self._runner: Optional[CoroutineRunner] = None
        self._starting = threading.Lock()
        self.only_begins = self._overlaps and inspect.iscoroutinefunction(getattr(model, "execute", None))
        """Whether :meth:`run` only starts a coroutine and returns."""

    def run(self, execution: int, raw_requests: "Sequence[Any]", tail: bytearray) -> int:
        """Execute once, queue the result and return the time it was ready, in monotonic nanoseconds."""
        raise NotImplementedError

    @property
    def runner(self) -> "CoroutineRunner":
        """The event loop of the model's coroutines; asyncio is imported only for models that use them."""
        if self._runner is None:
            from pybackend_stub.coroutines import CoroutineRunner

            with self._starting:  # the main thread and a readiness check may both be here
                if self._runner is None:
                    self._runner = CoroutineRunner()
        return self._runner

    def close(self, wait_s: float) -> None:
        """Cancel the model's coroutines and end their event loop; a stub's end ends both anyway."""
        if self._runner is not None:
            self._runner.close(wait_s)

    def awaits(self, execution: int) -> bool:
        """Whether the coroutine of an execution has not ended."""
        return self._runner is not None and self._runner.runs(execution)

    def _fail(
        self,
        execution: int,
        began_ns: int,
        start_ns: int,
        requests: "List[InferenceRequest]",
        count: int,
        error: BaseException,
        refused: Refused,
    ) -> int:
        """Answer every request of an execution with its error, except requests that have been answered or refused."""
        end_ns = time.monotonic_ns()
        failed = self._results.failure(
            ErrorCode.INTERNAL, self._log(error, execution, _ids_of(requests)), MOST_TEXT // count
        )
        results: List[Optional[RequestResult]] = [failed] * count
        for request in requests:
            stream = None if request._sender is None else request._sender._stream
            if stream is not None and not stream.settle():
                results[request._key[1]] = None
        for index, result in refused.items():
            results[index] = result
        with self._answers.lock:
            done_ns = self._answers.add_result(execution, began_ns, start_ns, end_ns, results)
            if text_length(failed.error, None) * count > MUCH_TEXT:
                self._answers.hurry()
            return done_ns

    def _log(self, error: BaseException, execution: int, ids: "Sequence[str]") -> str:
        """Log an execution's failure; returns the clients' error."""
        text = self._results.raised(error)
        self._errors.write(text, error, execution, ids)
        return text


class OnceExecutor(ModelExecutor):
    """For models that answer each request once."""

    def run(self, execution: int, raw_requests: "Sequence[Any]", tail: bytearray) -> int:
        clock, steps = time.monotonic_ns, self.steps
        began_ns = start_ns = clock()
        requests: List[InferenceRequest] = []
        refused = _NONE
        try:
            requests = self._reader.requests(execution, raw_requests, tail)
            start_ns, refused = clock(), self._reader.refused
            if steps is not None:
                steps.begin(requests)
            EXECUTING.requests = requests
            returned = self._model.execute(requests) if requests else []
            if type(returned) is not list and inspect.iscoroutine(returned):
                if self._overlaps:
                    EXECUTING.requests = ()
                    self._begin(execution, returned, began_ns, start_ns, requests, refused)
                    return start_ns
                returned = self.runner.run(execution, returned, ids_of(requests))
            responses = check_returned(returned, requests, self._reschedules)
            end_ns = clock()
        except BaseException as error:  # noqa: BLE001  any exception of a model, even SystemExit, answers its requests
            done_ns = self._fail(execution, began_ns, start_ns, requests, len(raw_requests), error, refused)
            EXECUTING.requests = ()
            return done_ns
        EXECUTING.requests = ()
        if steps is not None:
            box = list(responses)
            returned = responses = ()  # so that only the model may keep anything
            responses = steps.follow(execution, requests, box)
            with self._answers.lock:  # what has followed, and the result, leave in one frame
                steps.tell(execution, self._answers)
                return self._answer(execution, began_ns, start_ns, end_ns, requests, responses, refused)
        return self._answer(execution, began_ns, start_ns, end_ns, requests, responses, refused)

    def _begin(
        self,
        execution: int,
        coroutine: Any,
        began_ns: int,
        start_ns: int,
        requests: "List[InferenceRequest]",
        refused: Refused,
    ) -> None:
        """Let an execution continue while the next ones begin."""

        def on_done(returned: Any, error: "Optional[BaseException]") -> None:
            responses: Sequence[Optional[InferenceResponse]] = ()
            if error is None:
                try:
                    responses = check_returned(returned, requests, self._reschedules)
                except BaseException as broken:  # noqa: BLE001  as in OnceExecutor
                    error = broken
            if error is None:
                self._answer(execution, began_ns, start_ns, time.monotonic_ns(), requests, responses, refused)
            else:
                count = len(requests) + len(refused)
                self._fail(execution, began_ns, start_ns, requests, count, error, refused)
            del error  # its traceback may lead to this frame, which would keep the requests alive
            with suppress(HostGone):
                self._answers.flush()

        self.runner.start(execution, coroutine, on_done, ids_of(requests))

    def _answer(
        self,
        execution: int,
        began_ns: int,
        start_ns: int,
        end_ns: int,
        requests: "List[InferenceRequest]",
        responses: "Sequence[Optional[InferenceResponse]]",
        refused: Refused,
    ) -> int:
        most_text = MOST_TEXT // (len(requests) + len(refused))
        write, answers, text = self._results.response, self._answers, 0
        results: List[Any] = []
        places: Sequence[int] = ()
        with answers.lock:
            for request, response in zip(requests, responses):
                if response is None:
                    results.append(None)
                    continue
                result = error, _, parameters = write(
                    response, request._requested_output_names, answers.tail, most_text
                )
                if error is not None or parameters is not None:
                    text += text_length(error, parameters)
                    if type(response._error) is Unanswered:
                        unanswered = response._error.message()
                        self._errors.write(unanswered, TritonModelException(unanswered), execution, _ids_of([request]))
                results.append(result)
            if self._reschedules:
                places = rescheduled(requests, responses)
            if refused:
                places = [requests[place]._key[1] for place in places]
                results = _spread(requests, results, refused)
            done_ns = answers.add_result(execution, began_ns, start_ns, end_ns, results, places)
            if text > MUCH_TEXT:
                answers.hurry()
            return done_ns


class StreamExecutor(ModelExecutor):
    """For models that send any number of responses."""

    def run(self, execution: int, raw_requests: "Sequence[Any]", tail: bytearray) -> int:
        began_ns = start_ns = time.monotonic_ns()
        try:
            requests = self._reader.requests(execution, raw_requests, tail)
        except BaseException as error:  # noqa: BLE001  as in OnceExecutor
            return self._fail(execution, began_ns, start_ns, [], len(raw_requests), error, _NONE)
        refused = self._reader.refused
        # Made now, so that a request that the model simply drops is answered too.
        streams = [request.get_response_sender()._stream for request in requests]
        start_ns = time.monotonic_ns()
        returned: Any = None
        runner: Optional[CoroutineRunner] = None
        places: Sequence[int] = ()
        try:
            EXECUTING.requests = requests
            returned = self._model.execute(requests) if requests else None
            if inspect.iscoroutine(returned) and not self._reschedules:
                runner = self.runner
            else:
                if inspect.iscoroutine(returned):
                    returned = self.runner.run(execution, returned, ids_of(requests))
                check_decoupled(returned, self._results.instance_name)
                places = self._released(requests)
        except BaseException as error:  # noqa: BLE001  as in OnceExecutor
            self._fail_streams(execution, _ids_of(requests), streams, error)
        EXECUTING.requests = ()
        end_ns = time.monotonic_ns()
        with self._answers.lock:
            results: Sequence[Optional[RequestResult]] = (None,) * len(raw_requests)
            if refused:
                places = [requests[place]._key[1] for place in places]
                results = _spread(requests, [None] * len(requests), refused)
            done_ns = self._answers.add_result(execution, began_ns, start_ns, end_ns, results, places)
        if runner is not None:
            # Only now: the host must not take its BLS calls for ones that keep this process busy.
            self._begin_decoupled(runner, execution, returned, _ids_of(requests), streams, ids_of(requests))
        return done_ns

    def _released(self, requests: "Sequence[InferenceRequest]") -> "Sequence[int]":
        """Return the indexes of the requests to execute again."""
        if not self._reschedules:
            log_rescheduling(requests)
            return ()
        release_streams(requests)
        return rescheduled(requests, (None,) * len(requests))

    def _begin_decoupled(
        self,
        runner: "CoroutineRunner",
        execution: int,
        coroutine: Any,
        ids: "Sequence[str]",  # not the requests: the model may let go of them before the coroutine ends
        streams: "Sequence[Optional[ResponseStream]]",
        about: "Tuple[str, str]",
    ) -> None:
        def on_done(returned: Any, error: "Optional[BaseException]") -> None:
            if error is None:
                try:
                    check_decoupled(returned, self._results.instance_name)
                except TritonModelException as broken:
                    error = broken
            if error is not None:
                self._fail_streams(execution, ids, streams, error)
            del error  # as in _begin

        runner.start(execution, coroutine, on_done, about)

    def _fail_streams(
        self,
        execution: int,
        ids: "Sequence[str]",
        streams: "Sequence[Optional[ResponseStream]]",
        error: BaseException,
    ) -> None:
        text = self._log(error, execution, ids)
        for stream in streams:
            if stream is not None:
                stream.fail(TritonError(text))


def _spread(
    requests: "Sequence[InferenceRequest]", results: "Sequence[Optional[RequestResult]]", refused: Refused
) -> "List[Optional[RequestResult]]":
    """Return the results of executed and refused requests in the order of the message that they came with."""
    spread: List[Optional[RequestResult]] = [None] * (len(requests) + len(refused))
    for request, result in zip(requests, results):
        spread[request._key[1]] = result
    for index, result in refused.items():
        spread[index] = result
    return spread


def _ids_of(requests: "Sequence[InferenceRequest]") -> "List[str]":
    """Return the ids that clients gave their requests, ``""`` for those without one."""
    return [request._request_id for request in requests]
