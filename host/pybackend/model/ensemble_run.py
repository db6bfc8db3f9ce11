"""One request on its way through an ensemble: which tensors are there, which steps run, what is still to come."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.model.door import ModelDoor
from pybackend.model.ensemble_output import add_outputs
from pybackend.model.ensemble_plan import ONCE, EnsemblePlan, PlannedStep
from pybackend.model.ensemble_scope import EnsembleTensor, Memory, Scope
from pybackend.model.ensemble_sequence import Correlation
from pybackend.model.ensemble_step_io import StepInputs, take_outputs
from pybackend.model.model import Model
from pybackend.modelconfig.signature import ModelSignature

log = logging.getLogger(__name__)


MOST_INFLIGHT = 256
"""Requests that one request to an ensemble has with one step at a time where the configuration sets no limit. Beyond it,
streams wait: else what a fast one sends would pile up before a slow step."""

MOST_OPEN = 1024
"""Responses of one stream that have not brought one of the ensemble yet, e.g. because the first of them takes long."""


class RunOwner(Protocol):
    """The ensemble that a request is for."""

    name: str
    version: str
    signature: ModelSignature

    def on_response(self, run: EnsembleRun, response: InferenceResponse) -> None:
        """A response for whoever sent the request; the last one has ``final`` set."""

    def on_end(self, run: EnsembleRun) -> None:
        """No step runs any more, and no memory is held but that of responses which are not released."""


class _StepRun:
    """A request to a step, until it is answered."""

    __slots__ = ("correlation", "run", "scope", "step")

    def __init__(self, run: EnsembleRun, scope: Scope, step: PlannedStep, correlation: Correlation | None) -> None:
        self.run = run
        self.scope = scope
        self.step = step
        self.correlation = correlation

    def on_response(self, response: InferenceResponse) -> None:
        """The step's model has answered."""
        self.run.on_response(self, response)


class EnsembleRun:
    """Runs the steps as soon as their inputs are there.

    Each response of a step that streams opens a scope of its own, in which the steps that follow run once more.

    Args:
        owner: the ensemble.
        door: takes the steps' requests.
        plan: the way to the outputs that are wanted.
        most_inflight: how many requests may be with one step at the same time; 0 for :data:`MOST_INFLIGHT`.
        pending: the request; its inputs' memory is this object's from now on.
    """

    def __init__(
        self, owner: RunOwner, door: ModelDoor, plan: EnsemblePlan, most_inflight: int, pending: PendingRequest
    ) -> None:
        self.pending = pending
        self._owner = owner
        self._door = door
        self._plan = plan
        self._most_inflight = most_inflight or MOST_INFLIGHT
        self._root = Scope(ONCE, None, plan.steps(ONCE))
        self._absent: set[str] = set()
        self._running: dict[_StepRun, PendingRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._copying = 0
        self._busy: dict[int, int] = {}
        self._queued: dict[int, deque[tuple[Scope, PlannedStep]]] = {}
        self._paused = False
        self._ended = False
        self._closed = False

    def start(self) -> None:
        """Begin with the steps that need nothing but the request's own inputs."""
        root, signature = self._root, self._owner.signature
        batched = signature.max_batch_size > 0
        self.pending.runner = self
        self._absent = set(signature.inputs)
        for given in self.pending.request.inputs:
            assert given.data is not None  # the bytes have arrived
            self._absent.discard(given.name)
            shape = signature.shape_for_model(signature.inputs[given.name], given.shape)
            memory = Memory(given, self._plan.uses(given.name))
            root.keep(memory)
            tensor = EnsembleTensor(given.datatype, shape, given.data, memory, batched=batched, chain=ONCE, given=given)
            root.put(given.name, tensor)
        root.running += 1
        for step in list(root.waiting):
            self._begin_if_able(root, step)
        if self._running or self._copying:
            self._leave(root)
        else:  # outputs that are inputs, or nothing: not in the turn in which the request was submitted
            asyncio.get_running_loop().call_soon(self._leave, root)

    # Handle of the request

    def cancel(self, _pending: PendingRequest) -> None:
        """Nobody waits any more: neither for the steps."""
        for step in list(self._running.values()):
            step.cancel()

    def flow(self, _pending: PendingRequest, *, paused: bool) -> None:
        """Keep the steps from sending more, or let them go on."""
        if not self._ended:
            self._paused = paused
            self._regulate()

    @property
    def steps_under_way(self) -> list[tuple[PendingRequest, Model]]:
        """The requests to steps that are not answered, and the models that they went to; none while tensors are copied."""
        return [] if self._copying else [(pending, each.step.model) for each, pending in self._running.items()]

    def abort(self, error: InferenceError) -> None:
        """Answer the request with an error, now."""
        self._fail(error)

    # Steps begin

    def _begin_if_able(self, scope: Scope, step: PlannedStep) -> None:
        if self._ended or step not in scope.waiting:
            return
        for _, tensor in step.inputs:
            if scope.find(tensor) is None and tensor not in self._absent:
                return
        scope.waiting.remove(step)
        scope.running += 1
        scope.unsettled += not step.streams
        if self._busy.get(step.number, 0) >= self._most_inflight:
            self._queued.setdefault(step.number, deque()).append((scope, step))
            self._regulate()
        else:
            self._begin(scope, step)

    def _begin(self, scope: Scope, step: PlannedStep) -> None:
        """Bring the tensors to the step's model, then the request."""
        self._busy[step.number] = self._busy.get(step.number, 0) + 1
        inputs = StepInputs()
        try:
            inputs.take(scope, step, self._plan)
        except InferenceError as error:
            self._refuse(inputs, error)
            return
        if inputs.take_long:
            self._copying += 1
            task = asyncio.get_running_loop().create_task(self._copy_and_submit(scope, step, inputs))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            inputs.copy()
            self._submit(scope, step, inputs)

    async def _copy_and_submit(self, scope: Scope, step: PlannedStep, inputs: StepInputs) -> None:
        try:
            await inputs.copy_slowly()
        except Exception:  # a thread that cannot be had, for one; somebody waits for an answer
            log.exception("a request to ensemble '%s' failed", self._owner.name)
            self._fail(InferenceError("internal error: see the server's log"))
        self._copying -= 1
        if self._ended:
            inputs.release()
            self._close_if_idle()
        else:
            self._submit(scope, step, inputs)

    def _submit(self, scope: Scope, step: PlannedStep, inputs: StepInputs) -> None:
        """Hand a step to its model as a request like any other."""
        inputs.used(scope)
        if self.pending.cancelled:
            self._refuse(inputs, CANCELLED)
            return
        try:
            step_run = _StepRun(self, scope, step, inputs.correlation)
            request = self._request(step, inputs)
            self._running[step_run] = self._door.submit(step.model, request, step_run.on_response)
        except InferenceError as error:
            self._refuse(inputs, error)
            return
        if step.streams:
            self._regulate()
        if self.pending.request.is_inner:
            self._door.on_queued()

    def _request(self, step: PlannedStep, inputs: StepInputs) -> InferenceRequest:
        whole, model = self.pending.request, step.model
        request = InferenceRequest(
            model.name,
            model.version,
            id=whole.id,
            inputs=inputs.tensors,
            requested_outputs=step.requested,
            parameters=whole.parameters,
        )
        request.is_inner = True
        request.correlation_id, request.flags = inputs.correlation or (whole.correlation_id, whole.flags)
        request.priority, request.timeout_us = whole.priority, whole.timeout_us
        return request

    def _refuse(self, inputs: StepInputs, error: InferenceError) -> None:
        inputs.release()
        self._fail(error)

    # Steps answer

    def on_response(self, step_run: _StepRun, response: InferenceResponse) -> None:
        """A step has answered."""
        if response.final:
            del self._running[step_run]  # which ends a circle of references: those would stay until they are looked for
        try:
            self._follow(step_run, response)
        except Exception:  # whatever it is, somebody waits for an answer
            log.exception("a request to ensemble '%s' failed", self._owner.name)
            self._fail(InferenceError("internal error: see the server's log"))

    def _follow(self, step_run: _StepRun, response: InferenceResponse) -> None:
        """Do what follows from a response."""
        scope, step, plan = step_run.scope, step_run.step, self._plan
        if self._ended or response.empty:
            response.release()
        elif response.error is not None:
            self._fail(response.error)
        elif step.streams:
            self._branch(step_run, response)
        else:
            whole = self.pending.request
            for name in take_outputs(response, step, step_run.correlation, scope, plan, whole):
                for taker in plan.takers(name):
                    self._offer(scope, taker)
        if self._ended:
            self._close_if_idle()
        elif response.final:
            self._step_is_over(scope, step)

    def _branch(self, step_run: _StepRun, response: InferenceResponse) -> None:
        """One response of a stream: what follows from it has tensors of its own."""
        scope, step = step_run.scope, step_run.step
        chain = (*scope.chain, step.number)
        child = Scope(chain, scope, self._plan.steps(chain))
        children = scope.streams.setdefault(step.number, deque())
        children.append(child)
        if len(children) == MOST_OPEN:
            self._regulate()
        scope.running += 1
        child.running += 1
        take_outputs(response, step, step_run.correlation, child, self._plan, self.pending.request)
        for following in list(child.waiting):
            self._begin_if_able(child, following)
        self._leave(child)

    def _offer(self, scope: Scope, step: PlannedStep) -> None:
        """A tensor of this scope has come to be, for which a step may have waited here or in the scopes that follow."""
        if step.chain == scope.chain:
            self._begin_if_able(scope, step)
            return
        for child in tuple(scope.streams.get(step.chain[len(scope.chain)], ())):
            self._offer(child, step)

    def _step_is_over(self, scope: Scope, step: PlannedStep) -> None:
        self._busy[step.number] -= 1
        queued = self._queued.get(step.number)
        if queued:
            self._begin(*queued.popleft())
            self._regulate()
        scope.unsettled -= not step.streams
        self._leave(scope)

    # Flow of streams

    def _regulate(self) -> None:
        """Streams wait for whoever takes the responses, and for the steps that follow if those have as much as they may."""
        full = {number for queue in self._queued.values() if queue for number in queue[0][1].chain}
        for step_run, pending in list(self._running.items()):
            step = step_run.step
            if step.streams:
                is_full = step.number in full or len(step_run.scope.streams.get(step.number, ())) >= MOST_OPEN
                if self._paused or (is_full and step.number in self._plan.may_wait):
                    pending.pause()
                else:
                    pending.resume()

    # Scopes end

    def _leave(self, scope: Scope) -> None:
        """Something that ran in a scope is over."""
        scope.running -= 1
        if not self._ended and self._is_over(self._root) and not self._ended:
            self._finish()

    def _is_over(self, scope: Scope) -> bool:
        """True if nothing will happen in a scope any more.

        On the way the responses are sent that follow from streams and whose turn it is: those of each stream in its own
        order.
        """
        for children in scope.streams.values():
            while children and self._is_over(children[0]) and not self._ended:
                child = children.popleft()
                if child.chain in self._plan.leaves:
                    self._send(child)
                child.abandon()
                scope.running -= 1
                if len(children) == MOST_OPEN - 1:
                    self._regulate()
        return not scope.running and scope.is_settled

    def _send(self, scope: Scope) -> None:
        """Send those outputs that came to be, if any did because of the response of the stream."""
        made = (scope.find(name) for name in self._plan.wanted)
        if any(tensor is not None and tensor.chain == scope.chain for tensor in made):
            response = self._response(final=False)
            add_outputs(response, scope, self._plan.wanted, self._owner.signature)
            self._owner.on_response(self, response)

    def _finish(self) -> None:
        """Nothing runs any more: send the last response."""
        response = self._response(empty=ONCE not in self._plan.leaves)
        if not response.empty:
            for name in self._plan.wanted:
                if self._root.find(name) is None:
                    self._fail(self._unset(name))
                    return
            add_outputs(response, self._root, self._plan.wanted, self._owner.signature)
        self._ended = True
        self._owner.on_response(self, response)
        self._close_if_idle()

    def _unset(self, name: str) -> InferenceError:
        what = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
        return InferenceError(f"{self.pending.request.prefix}{what}: no step has set '{name}'", ErrorCode.INVALID_ARG)

    def _response(
        self, *, final: bool = True, empty: bool = False, error: InferenceError | None = None
    ) -> InferenceResponse:
        owner = self._owner
        return InferenceResponse(
            owner.name, owner.version, self.pending.request.id, error=error, final=final, empty=empty
        )

    def _fail(self, error: InferenceError) -> None:
        """The first error ends the request; what still runs is told, and its answers are dropped."""
        if self._ended:
            return
        self._ended = True
        if error is not CANCELLED:
            error = InferenceError(f"in ensemble '{self._owner.name}', {error.message}", error.code)
        # On the loop's next turn: this may be the turn in which the request was submitted, and a model that answers one
        # step with an error may be about to do the same with another.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._owner.on_response, self, self._response(error=error))
        loop.call_soon(self._give_up_steps)
        self._close_if_idle()

    def _give_up_steps(self) -> None:
        self._queued.clear()
        self._paused = False
        self._regulate()  # nobody will ask streams to go on
        self.cancel(self.pending)

    def _close_if_idle(self) -> None:
        if not self._ended or self._copying:
            return
        self._root.abandon()  # also while steps run whose answers nobody wants: they have what they take
        if not self._running and not self._closed:
            self._closed = True
            self.pending.runner = None  # it refers to this object
            self._owner.on_end(self)
