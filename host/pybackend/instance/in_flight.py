"""The executions that a stub has, and the checking of what it says about them."""

import time
from collections.abc import Iterator, Sequence

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.instance.execution import (
    Execution,
    ExecutionOwner,
    InstanceOwner,
    Returned,
    unanswered,
)
from pybackend.instance.lent_inputs import share, taken_back
from pybackend.instance.output_check import OutputWarnings
from pybackend.instance.prefetch import Prefetch
from pybackend.instance.session import Handler, StubSession
from pybackend.instance.settings import InstanceSettings
from pybackend.ipc import stub_messages as heard
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import STREAM_WINDOW

MOST_HANDED_BACK = 1000
"""Times that a stub may hand work back without having answered any: an honest one does it once per execution that
lasts."""

_GRANTED_AT_ONCE = STREAM_WINDOW // 2
"""Responses of a stream for which the host thanks with one message: short streams need none."""

Activity = tuple[int, int, int, int]
"""Counters of executions, which are the same again only if nothing has happened."""

MOST_LOSSES = 3
"""A request that was not begun waits for the next stub, but only so often: it may be what kills them."""


class ExecutionsInFlight:
    """The executions of one instance, whose owner learns how they end: :class:`~pybackend.instance.execution.InstanceOwner`."""

    def __init__(self, version: str, owner: InstanceOwner) -> None:
        self.session: StubSession | None = None
        self.last_number = 0
        self.request_count = 0  # the requests that this stub was sent
        self.in_flight: dict[int, Execution] = {}  # those that the stub has not returned from, by number, oldest first
        self.streaming: dict[int, Execution] = {}  # those that it has returned from and not answered
        self.prefetch = Prefetch(self.in_flight, owner)
        self._version = version
        self._owner = owner
        self._reschedules = False
        self._output_listener: OutputWarnings | None = None
        self._output_count = 0  # of a response to a request that names none; 0: fewer are right

    def begin(self, session: StubSession, settings: InstanceSettings) -> None:
        """The model is initialised in another stub: numbers begin at 1 again."""
        self.last_number = self.request_count = 0
        self._reschedules = settings.initialize.reschedules
        self._output_listener = settings.outputs
        session.outputs.listener = settings.outputs
        self._output_count = 0 if settings.initialize.decoupled else len(settings.initialize.output_names)
        self.prefetch.begin(settings.initialize.concurrency, session)

    def find(self, number: int) -> Execution | None:
        """The execution of this number, until its last request is answered."""
        return self.in_flight.get(number) or self.streaming.get(number)

    @property
    def activity(self) -> Activity:
        """The last number, and of the executions that wait for responses: how many, their requests, the responses so far."""
        waiting = self.streaming.values()
        streamed = sum(pending.streamed for execution in waiting for pending in execution.pending)
        return self.last_number, len(waiting), sum(execution.unanswered for execution in waiting), streamed

    def find_trace(self, number: int) -> RequestTrace | None:
        """The trace with this number, if the stub executes a request of it."""
        for execution in (*self.in_flight.values(), *self.streaming.values()):
            for pending in execution.pending:
                trace = pending.request.trace
                if trace is not None and trace.number == number:
                    return trace
        return None

    # Messages of the stub

    def handlers(self) -> dict[type, Handler]:
        return {
            heard.Result: self.on_results,
            heard.Respond: self.on_respond,
            heard.Rescheduled: lambda rescheduled, _: self.on_rescheduled(rescheduled),
            heard.DroppedOutput: lambda dropped, _: self.on_dropped_output(dropped),
            heard.Occupied: lambda message, _: self.on_occupied(message),
            heard.Followed: self.on_followed,
            heard.HandedBack: lambda handed_back, _: self.on_handed_back(handed_back.executions),
        }

    def on_results(self, results: Sequence[heard.Result], tail: bytes) -> None:
        """Executions have returned. What comes next leaves before the answers are written: the stub need not wait."""
        now_ns = time.monotonic_ns()
        returned_to: dict[tuple[ExecutionOwner, int], list[Returned]] = {}
        try:
            for result in results:
                returned = execution, _ = self._returned(result, tail, now_ns)
                returned_to.setdefault((execution.owner, execution.left_ns or now_ns), []).append(returned)
                if execution.gate is not None:
                    execution.gate.end()
        finally:  # those before a broken one are over
            try:
                if self._owner.send_next is not None:
                    self._owner.send_next()
                if self.session is not None:
                    self.session.channel.flush()
            finally:
                self._tell(iter(returned_to.items()))

    def _tell(self, returned_to: Iterator[tuple[tuple[ExecutionOwner, int], Sequence[Returned]]]) -> None:
        """Tell each owner what is over, and since when."""
        for (owner, over_ns), executions in returned_to:
            try:
                owner.on_executed(executions, over_ns)
            except BaseException:
                self._tell(returned_to)  # the requests of the others are answered in any case
                raise

    def _returned(self, result: heard.Result, tail: bytes, now_ns: int) -> Returned:
        """The execution with a result, which is over."""
        execution = self.in_flight.get(result.execution)
        if execution is None:
            raise RemoteProtocolError("a result for which there is no execution")
        if len(result.results) != len(execution.pending):
            raise RemoteProtocolError("a result with the wrong number of answers")
        began_ns, start_ns, end_ns = result.began_ns, result.infer_start_ns, result.infer_end_ns
        if not execution.sent_ns <= began_ns <= start_ns <= end_ns <= now_ns:
            began_ns, start_ns, end_ns = execution.sent_ns, execution.sent_ns, now_ns  # a stub's word is worth no more
        responses: list[InferenceResponse | None] = []
        for pending, item in zip(execution.pending, result.results):  # noqa: B905  counted above
            responses.append(None if item is None else self._response(pending, item, tail, final=True))
        if execution.followed:
            first = responses[0]
            if first is None:
                raise RemoteProtocolError("steps that have followed one without a result")
            followed, execution.followed = execution.followed, ()
            if first.error is None:
                first.followed = followed
            else:  # its result could not be sent
                for each in followed:
                    each.release()
            execution.left_ns = execution.left_ns if end_ns <= execution.left_ns <= now_ns else end_ns
        again = self._withdrawn(execution, responses) if execution.rescheduled else None
        del self.in_flight[result.execution]  # only once all is checked: what is in flight is answered in any case
        execution.times = began_ns, start_ns, end_ns
        self.prefetch.on_answer(execution, now_ns, result.done_ns - result.began_ns)
        if None in responses:
            execution.unanswered -= len(responses) - responses.count(None)
            if execution.unanswered:
                self.streaming[execution.number] = execution
            if again:
                execution.owner.on_rescheduled(again)
        return execution, responses

    def _withdrawn(self, execution: Execution, responses: Sequence[object]) -> list[PendingRequest]:
        """The requests that the model wants to see once more: nothing runs them for now."""
        assert self.session is not None
        again = execution.withdraw_rescheduled(responses, self.session.inputs)
        for pending in again:
            if pending.granted or pending.paused:
                self.session.flow(pending.execution, pending.index, None)
            pending.wait()
            share(pending.request)
        return again

    def _response(
        self, pending: PendingRequest, item: heard.RequestResult, tail: bytes, *, final: bool, is_own: bool = True
    ) -> InferenceResponse:
        """``is_own``: the outputs are this model's, not those of another one in its process."""
        if pending.answered:
            raise RemoteProtocolError("a response to a request that is answered")
        request = pending.request
        if item.error is not None:
            error = InferenceError(item.error.message, ErrorCode(item.error.code))
            return InferenceResponse(request.model_name, self._version, request.id, error=error, final=final)
        assert self.session is not None
        outputs, on_release = self.session.outputs.tensors_of(item, tail, request.regions, is_own=is_own)
        count, listener = self._output_count, self._output_listener
        if count and is_own and len(outputs) < (len(request.requested_outputs) or count) and listener is not None:
            listener.on_few_outputs(outputs, request)
        return InferenceResponse(
            request.model_name, self._version, request.id, outputs, item.parameters, on_release, None, final
        )

    def on_respond(self, respond: heard.Respond, tail: bytes) -> None:
        """A response was sent by a sender."""
        number = respond.execution
        execution = self.in_flight.get(number) or self.streaming.get(number)
        if execution is None or respond.request >= len(execution.pending):
            raise RemoteProtocolError("a response for which there is no request")
        pending = execution.pending[respond.request]
        if pending.execution != number:
            raise RemoteProtocolError("a response to a request that must be executed once more")
        if not respond.final:
            pending.streamed = streamed = pending.streamed + 1
            if streamed > (pending.granted or STREAM_WINDOW) and not pending.cancelled:
                raise RemoteProtocolError("more responses than the host accepts")
            if not (streamed % _GRANTED_AT_ONCE or pending.paused):
                self.flow(pending, paused=False)
        if respond.result is not None:
            response = self._response(pending, respond.result, tail, final=respond.final)
        elif not respond.final:
            raise RemoteProtocolError("a response without content and without the final flag")
        elif pending.answered:
            raise RemoteProtocolError("a final flag for a request that is answered")
        else:
            response = InferenceResponse(pending.request.model_name, self._version, pending.request.id, empty=True)
        execution.responded = True
        if respond.final:
            execution.unanswered -= 1
            if not execution.unanswered:
                self.streaming.pop(number, None)
        execution.owner.on_streamed(execution, pending, response)
        if respond.final and pending.granted:
            self.flow(pending, paused=False)

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Keep the model from sending more responses to a request, or let it go on, or end that: it is answered."""
        if self.session is None:
            return
        allowed: int | None = 0
        if pending.answered:
            allowed, pending.granted = None, 0
        elif not paused:
            allowed = pending.granted = pending.streamed + STREAM_WINDOW
        self.session.flow(pending.execution, pending.index, allowed)

    def on_dropped_output(self, dropped: heard.DroppedOutput) -> None:
        """The model has returned an output whose name is not configured, for the first time."""
        if self._output_listener is not None:
            self._output_listener.on_dropped_output(dropped.name)

    def on_rescheduled(self, rescheduled: heard.Rescheduled) -> None:
        """``execute`` is about to return; the model wants to see some of its requests once more."""
        execution = self.in_flight.get(rescheduled.execution)
        if execution is None or not self._reschedules:
            raise RemoteProtocolError("a request to be executed once more that the stub did not have")
        execution.reschedule(rescheduled.requests)

    def on_occupied(self, message: heard.Occupied) -> None:
        """Another model in the process runs this one, or does not any more."""
        assert self.session is not None
        self.session.check_shared()
        self.prefetch.occupy(occupied=message.occupied)

    def on_followed(self, message: heard.Followed, tail: bytes) -> None:
        """Steps of an ensemble have followed an execution in the process; its result comes next."""
        execution = self.in_flight.get(message.execution)
        pending = None if execution is None else execution.pending[0]
        following = None if pending is None else pending.request.following
        if execution is None or pending is None or following is None or execution.followed:
            raise RemoteProtocolError("steps that have followed an execution that has none")
        results = message.results
        if not 0 < len(results) <= len(following.program.steps) or any(each.error is not None for each in results[:-1]):
            raise RemoteProtocolError("steps that have followed one without a result")
        execution.left_ns = message.left_ns
        followed: list[InferenceResponse] = []
        execution.followed = followed  # at once: those before a broken one have memory that must be released, too
        followed.extend(self._response(pending, result, tail, final=True, is_own=False) for result in results)
        if self._output_listener is not None:
            for output in message.new_outputs:
                self._output_listener.on_new_output(output.name, output.datatype, output.shape)

    def on_handed_back(self, executions: Sequence[int]) -> None:
        """The stub is busy, and gives back what it has not begun."""
        session, prefetch = self.session, self.prefetch
        assert session is not None
        prefetch.on_handed_back()
        returned: list[Execution] = []
        # All stays in flight until all is checked: if it is a lie, it ends with everything else that was in flight.
        for number in executions:
            execution = self.in_flight.get(number)
            if execution is None or execution.responded or execution.followed or execution in returned:
                raise RemoteProtocolError("work handed back that the stub did not have")
            if not all(taken_back(session.inputs, pending.request) for pending in execution.pending):
                raise RemoteProtocolError("work handed back whose input the stub had given back")
            returned.append(execution)
        if prefetch.handed_back > MOST_HANDED_BACK and len(executions) == len(self.in_flight):
            raise RemoteProtocolError("all work is handed back")
        waiting_of: dict[ExecutionOwner, list[PendingRequest]] = {}
        for execution in returned:
            del self.in_flight[execution.number]
            for pending in execution.pending:
                pending.wait()
            waiting_of.setdefault(execution.owner, []).extend(execution.pending)
        self.last_number += 1  # one is left out: to the stub, what follows what it handed back was sent before
        prefetch.rest_if_busy()
        for owner, waiting in waiting_of.items():
            owner.on_handed_back(waiting)
        for execution in returned:
            if execution.gate is not None:
                execution.gate.end()

    # The end of the stub

    def lose(self, instance: object, error: InferenceError) -> tuple[list[PendingRequest], int]:
        """The stub is dead: notify the owners of its executions, and the model in any case.

        Returns the requests that fail, and how many wait for another stub.
        """
        session, self.session = self.session, None
        assert session is not None
        in_flight, streaming = list(self.in_flight.values()), list(self.streaming.values())
        self.in_flight.clear()
        self.streaming.clear()
        self.prefetch.end()
        lost: dict[ExecutionOwner, tuple[list[PendingRequest], list[PendingRequest]]] = {self._owner: ([], [])}
        for execution in streaming:
            lost.setdefault(execution.owner, ([], []))[0].extend(unanswered([execution]))
        last_begun = session.last_begun()
        for execution in in_flight:
            begun, waiting = lost.setdefault(execution.owner, ([], []))
            for pending in unanswered([execution]):
                pending.wait()
                if execution.number <= last_begun:
                    begun.append(pending)
                    continue
                pending.losses += 1
                can_run_again = taken_back(session.inputs, pending.request) and pending.losses < MOST_LOSSES
                (waiting if can_run_again else begun).append(pending)
        failed = [pending for begun, _ in lost.values() for pending in begun]
        saved = sum(len(waiting) for _, waiting in lost.values())
        for owner, (begun, waiting) in lost.items():
            owner.on_lost(instance, error, begun, waiting)
        for execution in in_flight:
            for response in execution.followed:
                response.release()
            for pending in execution.pending:
                if pending.request.trace is not None:
                    pending.request.trace.end_execution()  # of one that was answered before it died
            if execution.gate is not None:
                execution.gate.end()
        return failed, saved
