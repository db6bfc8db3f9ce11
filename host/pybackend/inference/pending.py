"""Requests that the engine has accepted and not yet answered, and the path of their responses.

The path is composed once, when a model is loaded. It consists of stages: objects with a method of the type
:data:`ResponsePath`, usually named ``on_response``, that pass responses on to the next stage. A stage receives the rest
of the path at construction and keeps it. A stage stores its state for a request under the :class:`PendingRequest` until
it has passed on the final response or the request is withdrawn from it; it passes on responses to unknown requests
unchanged. A model has only the stages that it needs, in this order:

1. ``scheduler/ordered_delivery.py``: sends responses in the order of their requests.
2. ``scheduler/sequence_batcher.py``: keeps state tensors, and lets the sequence continue.
3. ``model/cached_answers.py``: copies the response into the cache.
4. ``model/latencies.py``: notes when the first response came.
5. :class:`QueuedBytes`: stops counting the request's bytes.

A model that needs none of them uses :func:`to_sender`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse

log = logging.getLogger(__name__)


class RunningExecution(NamedTuple):
    """An execution that is running in a stub.

    The number counts within this life of the instance's stub. The caller identifies the calls that the model makes
    during it.
    """

    instance: object
    number: int
    caller: object


class RequestHolder:
    """The current holder of a request: a model's queue, an instance, or an ensemble run.

    This one holds requests that nobody cancels: the server's own.
    """

    def cancel(self, pending: PendingRequest) -> None:
        """The sender no longer wants responses to this request: drop it, or notify the model."""

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Stop the model from sending more responses to this request, or let it continue."""

    def is_running(self, pending: PendingRequest) -> bool:
        """True if the request has started, so cancelling it would not end it immediately."""
        return False

    def blockers(self, pending: PendingRequest) -> Sequence[RunningExecution]:
        """The executions of which at least one must end before this request can continue; empty if it can now."""
        return ()


_MOST_NAMED = 80
"""Most characters of ids in a line of the log."""


class RequestHandle(Protocol):
    """The sender's control of a request that is not answered yet."""

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""

    def pause(self) -> None:
        """Stop accepting responses; a few may still arrive."""

    def resume(self) -> None:
        """Accept responses again."""


class PendingRequest(Struct, eq=False):
    """A request, the destination of its responses, and the handle by which its sender cancels, pauses and resumes it.

    Several components handle it in turn. Each attribute has its own writers; all other code only reads it.
    """

    request: InferenceRequest  # the inference request. Never replaced.
    # the sender's callback; it receives every response and must release it. Never replaced: the stages of the model's
    # response path (:mod:`pybackend.inference.pending`) process responses before they reach it, and only the end of
    # that path calls it.
    on_response: OnResponse
    queue: RequestHolder  # the model's queue. Never replaced.
    # the instance or ensemble run that has taken the request, and returns it with :meth:`wait`; None while it waits in
    # the queue
    taken_by: RequestHolder | None = None
    answered: bool = False  # True once the final response has been sent. The model writes it.
    cancelled: bool = False  # True once the sender has cancelled the request. :meth:`cancel` writes it.
    # number of the request's execution at the instance that holds it; 0 while the request waits, or if its model has no
    # instances. The instance writes it, and :meth:`wait` resets it.
    execution: int = 0
    index: int = 0  # position in that execution; meaningless outside one. The instance writes it.
    succeeded: bool = True  # False once a response was an error. The model writes it.
    # number of stubs that died after receiving the request and before starting it. The instance writes it.
    losses: int = 0
    paused: bool = False  # True while the sender accepts no responses. :meth:`pause` and :meth:`resume` write it.
    streamed: int = 0  # number of responses, without the final one, of its execution so far. The instance writes it.
    # number of such responses that the stub was told it may send; 0 if it was told none. The instance writes it.
    granted: int = 0
    # True if the request only pads a batch; it has no sender and is not counted. The scheduler sets it when it creates
    # the request.
    is_filler: bool = False

    @property
    def holder(self) -> RequestHolder:
        """The part that has the request now."""
        return self.queue if self.taken_by is None else self.taken_by

    def cancel(self) -> None:
        """Cancel: a waiting request is dropped and answered with CANCELLED; a running request's model is notified."""
        if self.answered or self.cancelled:
            return
        self.cancelled = True
        self.holder.cancel(self)

    @property
    def is_waiting(self) -> bool:
        """True while the request is in its model's queue."""
        return self.taken_by is None

    def wait(self) -> None:
        """Return the request to its model's queue; nothing runs it any more."""
        self.taken_by, self.execution, self.streamed, self.granted = None, 0, 0, 0
        if self.request.trace is not None:
            self.request.trace.end_execution()

    def pause(self) -> None:
        """Stop accepting responses: the model waits before it sends the next one. A few may still arrive.

        The final response is sent regardless, because it is the last one that needs buffering.
        """
        if self.paused or self.answered or self.cancelled:
            return
        self.paused = True
        self.holder.flow(self, paused=True)

    def resume(self) -> None:
        """Accept responses again."""
        if self.paused:
            self.paused = False
            self.holder.flow(self, paused=False)


def failure(request: InferenceRequest, version: str, error: InferenceError) -> InferenceResponse:
    """The final response that reports a request's error."""
    return InferenceResponse(request.model_name, version, request.id, error=error)


CANCELLED = InferenceError("the client cancelled the request", ErrorCode.CANCELLED)


ResponsePath = Callable[[PendingRequest, InferenceResponse], None]
"""Accepts a response to a request; called on the event loop, never from inside ``submit``."""


def to_sender(pending: PendingRequest, response: InferenceResponse) -> None:
    """The end of every path. If the receiver fails, the response is released, and no other request is affected."""
    try:
        pending.on_response(response)
    except Exception:  # a receiver's fault must not end the stub whose message is being handled
        log.exception("the receiver of a response of model '%s' failed", response.model_name)
        response.release()


def guarded(path: ResponsePath) -> ResponsePath:
    """The same path for callers that must answer other requests too: an exception in a stage loses one response."""
    if path is to_sender:
        return path

    def guard(pending: PendingRequest, response: InferenceResponse) -> None:
        try:
            path(pending, response)
        except Exception:  # likewise a stage's
            log.exception("a response of model '%s' was lost on its way to its receiver", response.model_name)
            response.release()

    return guard


class Mention(NamedTuple):
    """How a line of the log names requests."""

    text: str
    ids: str
    traces: str


def mention(requests: Sequence[PendingRequest]) -> Mention:
    """Name requests for the log. The texts of ids are the clients'."""
    asked = [pending.request for pending in requests if not pending.is_filler]
    ids = ", ".join(request.id for request in asked if request.id)[:_MOST_NAMED]
    traced = dict.fromkeys(request.trace.trace_id for request in asked if request.trace is not None)
    traces = ", ".join(filter(None, traced))[:_MOST_NAMED]
    named = "; ".join([f"id {ids}"] * bool(ids) + [f"trace {traces}"] * bool(traces))
    text = f"{len(requests) or 'no'} request{'' if len(requests) == 1 else 's'}"
    return Mention(f"{text} ({named})" if named else text, ids, traces)


class QueuedBytes:
    """The total bytes of all models' client requests. Calls between models are neither counted nor refused.

    It is the last stage of every model's response path.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._nbytes: dict[PendingRequest, int] = {}

    def weigh(self, request: InferenceRequest) -> int:
        """The request's size in bytes. Raises InferenceError UNAVAILABLE if it would exceed the limit."""
        nbytes = sum(len(tensor.data) for tensor in request.inputs)  # type: ignore[arg-type,misc]  # bytes are there
        if self.used_bytes + nbytes > self.limit_bytes:
            raise InferenceError(
                f"{request.prefix}the server is overloaded: it holds {self.used_bytes} bytes of waiting and running "
                f"requests, and {nbytes} more would exceed its limit of {self.limit_bytes} (--max-queued-bytes). Try "
                "again later",
                ErrorCode.UNAVAILABLE,
            )
        return nbytes

    def add(self, pending: PendingRequest, nbytes: int) -> None:
        """Count a request of this size until it is answered."""
        self._nbytes[pending] = nbytes
        self.used_bytes += nbytes

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Pass a response on to the sender; a final response ends the request's count."""
        if response.final:
            self.used_bytes -= self._nbytes.pop(pending, 0)
        to_sender(pending, response)
