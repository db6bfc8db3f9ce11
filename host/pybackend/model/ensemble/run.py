"""Runs requests through an ensemble: tracks their tensors, their running steps and their remaining outputs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from msgspec import Struct

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest, RequestHolder, RunningExecution, guarded
from pybackend.inference.region import RegionOutput, RegionOutputs
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.validation import Checked
from pybackend.model.cached_answers import response_path
from pybackend.model.ensemble.parts import EnsembleBinding
from pybackend.model.ensemble.plan import EnsemblePlan
from pybackend.model.ensemble.planned_step import ONCE, PlannedStep
from pybackend.model.ensemble.scope import Correlation, EnsembleTensor, Scope, SharedTensors
from pybackend.model.ensemble.step_io import StepInputs, add_outputs, take_outputs
from pybackend.model.host import ModelHost, ModelRouter
from pybackend.model.model import Model
from pybackend.model.outcomes import RequestOutcomes
from pybackend.model.statistics import FailureReason
from pybackend.modelconfig.ensemble import most_inflight
from pybackend_wire.dtypes import ITEMSIZE

log = logging.getLogger(__name__)


MOST_INFLIGHT = 256
"""Limit on the requests that one ensemble request has open with each step, unless it is configured.

Beyond it, streams are paused; otherwise the responses of a fast stream would pile up before a slow step."""

MOST_OPEN = 1024
"""Limit on one stream's responses that have not yet led to an ensemble response, e.g. because the first is slow."""


class _StepRequest(Struct, eq=False):
    """A request to a step, until its final response."""

    scope: Scope
    step: PlannedStep
    correlation: Correlation | None


class StepRequests(RequestHolder):
    """The requests to steps that one request to an ensemble has open; for its sender, it holds the request.

    Attributes:
        open: the requests that their models have accepted.
        copying: number of requests whose tensors are being copied.
    """

    copying = 0
    _paused = False

    def __init__(self, run: EnsembleRun, plan: EnsemblePlan, router: ModelRouter, most_inflight: int) -> None:
        self.open: dict[_StepRequest, PendingRequest] = {}
        self._run = run
        self._router = router
        self._plan = plan
        self._most_inflight = most_inflight
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: dict[int, int] = {}
        self._queued: dict[int, deque[tuple[Scope, PlannedStep]]] = {}

    # Interface for the sender

    def cancel(self, pending: PendingRequest | None = None) -> None:
        """The sender has left: cancel the steps."""
        for step in list(self.open.values()):
            step.cancel()

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Stop the steps from sending more responses, or let them continue."""
        if not self._run.ended:
            self._paused = paused
            self.regulate()

    def is_running(self, pending: PendingRequest) -> bool:
        """True if every open request has started, or tensors are being copied."""
        return bool(self.copying) or all(pending.holder.is_running(pending) for pending in self.open.values())

    def blockers(self, pending: PendingRequest) -> Sequence[RunningExecution]:
        """The blockers of all open requests; empty if one of them can continue."""
        if self.copying:
            return ()
        of_steps = [pending.holder.blockers(pending) for pending in self.open.values()]
        return [execution for blockers in of_steps for execution in blockers] if all(of_steps) else ()

    # Requests

    def begin(self, scope: Scope, step: PlannedStep) -> None:
        """Move the tensors to the step's model and submit the request, as soon as the step has not too many."""
        if step.chain:  # all others run once
            busy = self._busy.get(step.number, 0)
            if busy >= self._most_inflight:
                self._queued.setdefault(step.number, deque()).append((scope, step))
                self.regulate()
                return
            self._busy[step.number] = busy + 1
        inputs = StepInputs()
        try:
            inputs.take(scope, step, self._plan)
        except InferenceError as error:
            self._refuse(inputs, error)
            return
        if inputs.copies:
            if inputs.take_long:
                self.copying += 1
                task = asyncio.get_running_loop().create_task(self._copy_and_submit(scope, step, inputs))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            inputs.copy()
        self._submit(scope, step, inputs)

    async def _copy_and_submit(self, scope: Scope, step: PlannedStep, inputs: StepInputs) -> None:
        run = self._run
        try:
            await inputs.copy_slowly()
        except Exception as error:  # noqa: BLE001  e.g. no thread is available; the sender waits for an answer
            run.on_fault(error)
        self.copying -= 1
        if run.ended:
            inputs.release()
            run.close_if_idle()
        else:
            self._submit(scope, step, inputs)

    def _submit(self, scope: Scope, step: PlannedStep, inputs: StepInputs) -> None:
        """Submit a step to its model as an ordinary request."""
        if inputs.read:
            inputs.used()
        run = self._run
        if run.pending.cancelled:
            self._refuse(inputs, CANCELLED)
            return
        whole, model, layout = run.pending.request, step.model, inputs.layout
        batch_size = step.batch_sizes.get(layout) if step.signature is model.signature else None
        correlation_id, flags = inputs.correlation or (whole.correlation_id, whole.flags)
        request = InferenceRequest(
            model.name,
            model.version,
            whole.id,
            inputs.tensors,
            step.requested,
            batch_size or 1,
            whole.parameters,
            correlation_id,
            flags,
            whole.priority,
            whole.timeout_us,
            True,  # is_inner
        )
        if step.dispensable:
            request.dispensable_outputs = step.dispensable
        if whole.regions is not None:
            request.regions = self._regions(step, whole.regions, has_inputs=inputs.has_regions)
        if whole.trace is not None:
            request.trace = whole.trace.child(of_execution=False)
        elif step in self._plan.paths and whole.regions is None and (model.is_newest or not step.any_version):
            request.following = self._plan.paths[step].following(scope)
        step_request = _StepRequest(scope, step, inputs.correlation)
        try:
            self.open[step_request] = self._router.submit(
                model,
                request,
                partial(run.on_step_response, step_request),
                step.any_version,
                Checked.NOTHING if batch_size is None else Checked.ALL,
            )
        except InferenceError as error:
            self._refuse(inputs, error)
            return
        if batch_size is None and layout and all(ITEMSIZE[tensor.datatype] for tensor in inputs.tensors):
            step.remember(layout, request.batch_size)
        if step.streams:
            self.regulate()
        if whole.is_inner:
            self._router.on_queued()

    def _regions(self, step: PlannedStep, wanted: RegionOutputs, *, has_inputs: bool) -> RegionOutputs | None:
        """The destinations of a step's outputs that only the client reads; None if no tensor of it lies in a region."""
        parts = {
            name: RegionOutput.of(wanted[tensor])
            for name, tensor in step.outputs.items()
            if tensor in wanted and not self._plan.consumers(tensor)
        }
        return parts if parts or has_inputs else None

    def _refuse(self, inputs: StepInputs, error: InferenceError) -> None:
        inputs.release()
        self._run.fail(error)

    def on_end(self, step: PlannedStep) -> None:
        """One of a step's requests within a stream is over: another one may begin."""
        self._busy[step.number] -= 1
        queued = self._queued.get(step.number)
        if queued:
            self.begin(*queued.popleft())
            self.regulate()

    def regulate(self) -> None:
        """Pause streams while the sender is paused, or while following steps have reached their limit."""
        full = {number for queue in self._queued.values() if queue for number in queue[0][1].chain}
        for step_request, pending in list(self.open.items()):
            step = step_request.step
            if step.streams:
                is_full = step.number in full or len(step_request.scope.streams.get(step.number, ())) >= MOST_OPEN
                if self._paused or (is_full and step.number in self._plan.may_wait):
                    pending.pause()
                else:
                    pending.resume()

    def give_up(self) -> None:
        """Cancel all requests, and begin no other ones."""
        self._queued.clear()
        self._paused = False
        self.regulate()  # paused streams would otherwise never continue
        self.cancel()


class EnsembleRun:
    """Runs each step as soon as its inputs are available.

    Each response of a streaming step opens a new scope, in which the following steps run again.

    Attributes:
        pending: the request; this object takes over its inputs' memory.
        ended: True once the final response has been sent.
    """

    ended = False
    _absent: AbstractSet[str] = frozenset()
    _closed = False

    def __init__(self, requests: EnsembleRequests, plan: EnsemblePlan, pending: PendingRequest) -> None:
        self.pending = pending
        self._requests = requests
        self._plan = plan
        self._steps = StepRequests(self, plan, requests.router, requests.most_inflight)
        self._root = Scope(ONCE, None, plan.steps(ONCE))

    def start(self) -> None:
        """Start the steps that need only the request's own inputs."""
        root, signature, given = self._root, self._requests.signature, self.pending.request.inputs
        batched, tensors = signature.max_batch_size > 0, root.tensors
        steps = self.pending.taken_by = self._steps
        for each in given:
            memory = None
            if each.lease is not None:
                memory = SharedTensors(each, self._plan.uses(each.name))
                root.keep(memory)
            shape = each.shape
            if signature.has_reshape:
                shape = signature.shape_for_model(signature.inputs[each.name], shape)
            data: Any = each.data  # the bytes have arrived
            tensors[each.name] = EnsembleTensor(each.datatype, shape, data, memory, batched, ONCE, each)
        if len(given) < len(signature.inputs):
            self._absent = signature.inputs.keys() - tensors.keys()
        root.running += 1
        for step in self._plan.first:
            self._begin_if_able(root, step)
        if steps.open or steps.copying:
            self._leave(root)
        else:  # no steps: the response must not be sent in the loop turn in which the request was submitted
            asyncio.get_running_loop().call_soon(self._leave, root)

    # Starting steps

    def _begin_if_able(self, scope: Scope, step: PlannedStep) -> None:
        if self.ended or step not in scope.waiting:
            return
        if not (step.needs <= scope.tensors.keys() or self._is_able(scope, step)):
            return
        scope.waiting.remove(step)
        scope.running += 1
        if not step.streams:
            scope.unsettled += 1
        self._steps.begin(scope, step)

    def _is_able(self, scope: Scope, step: PlannedStep) -> bool:
        """True if all inputs are there or need not be, e.g. because an earlier step has left out an optional one."""
        return all(
            scope.find(tensor) is not None or tensor in self._absent or (name in step.optional and scope.lacks(tensor))
            for name, tensor in step.inputs
        )

    # Responses of steps

    def on_step_response(self, step_request: _StepRequest, response: InferenceResponse) -> None:
        if response.final:
            del self._steps.open[step_request]  # breaks a reference cycle, which would stay until garbage collection
        scope, step = step_request.scope, step_request.step
        try:
            if self.ended or response.empty:
                response.release()
                for each in response.followed:
                    each.release()
            elif response.error is not None:
                self.fail(response.error)
            elif step.streams:
                self._branch(step_request, response)
            else:
                take_outputs(response, step, step_request.correlation, scope, self._plan, self.pending.request)
                done = self._take_followed(step_request, response.followed) if response.followed else ()
                for ended in (step, *done):
                    self._follow(scope, ended)
            if self.ended:
                self.close_if_idle()
            elif response.final:
                if step.chain:
                    self._steps.on_end(step)
                if not step.streams:
                    scope.unsettled -= 1
                self._leave(scope)
        except Exception as error:  # noqa: BLE001  the sender waits for an answer in any case
            self.on_fault(error)

    def _take_followed(
        self, step_request: _StepRequest, responses: Sequence[InferenceResponse]
    ) -> Sequence[PlannedStep]:
        """Take the outputs of the steps that have followed one in its process; returns these steps."""
        scope = step_request.scope
        done = self._plan.paths[step_request.step].steps[: len(responses)]
        for step, response in zip(done, responses, strict=True):
            scope.waiting.remove(step)
            for _, name in step.inputs:
                tensor = scope.tensors.get(name)
                if tensor is not None and tensor.memory is not None:
                    tensor.memory.used()
            if response.error is not None:
                self.fail(response.error)
            else:
                take_outputs(response, step, step_request.correlation, scope, self._plan, self.pending.request)
        return done

    def _follow(self, scope: Scope, step: PlannedStep) -> None:
        """Start the steps that can run now that one has ended."""
        for follower in step.followers:
            if follower.chain == scope.chain:
                self._begin_if_able(scope, follower)
            else:
                self._offer(scope, follower)

    def _branch(self, step_request: _StepRequest, response: InferenceResponse) -> None:
        """Open a scope for one response of a stream, because the following steps have separate tensors."""
        scope, step = step_request.scope, step_request.step
        chain = (*scope.chain, step.number)
        child = Scope(chain, scope, self._plan.steps(chain))
        children = scope.streams.setdefault(step.number, deque())
        children.append(child)
        if len(children) == MOST_OPEN:
            self._steps.regulate()
        scope.running += 1
        child.running += 1
        take_outputs(response, step, step_request.correlation, child, self._plan, self.pending.request)
        for following in list(child.waiting):
            self._begin_if_able(child, following)
        self._leave(child)

    def _offer(self, scope: Scope, step: PlannedStep) -> None:
        """A new tensor may allow a step to start, in this scope or in scopes within it."""
        if step.chain == scope.chain:
            self._begin_if_able(scope, step)
            return
        for child in tuple(scope.streams.get(step.chain[len(scope.chain)], ())):
            self._offer(child, step)

    # Ends of scopes

    def _leave(self, scope: Scope) -> None:
        """Something that ran in a scope has ended."""
        scope.running -= 1
        root = self._root
        if self.ended:
            return
        if not root.streams:
            if not root.running:
                self._finish()
        elif self._is_over(root) and not self.ended:
            self._finish()

    def _is_over(self, scope: Scope) -> bool:
        """True if nothing more will happen in a scope.

        As a side effect, sends the responses of streams whose turn has come, in each stream's order.
        """
        for children in scope.streams.values():
            while children and self._is_over(children[0]) and not self.ended:
                child = children.popleft()
                if child.chain in self._plan.leaves:
                    self._send(child)
                child.abandon()
                scope.running -= 1
                if len(children) == MOST_OPEN - 1:
                    self._steps.regulate()
        return not scope.running and scope.is_settled

    def _send(self, scope: Scope) -> None:
        """Send the available outputs, if any of them depends on the stream's response."""
        found = [(name, tensor) for name in self._plan.wanted if (tensor := scope.find(name)) is not None]
        if any(tensor.chain == scope.chain for _, tensor in found):
            requests = self._requests
            response = InferenceResponse(requests.name, requests.version, self.pending.request.id, final=False)
            add_outputs(response, found, scope.chain, requests.signature, self.pending.request)
            requests.answer(self, response)

    def _finish(self) -> None:
        """All steps have ended: send the last response."""
        plan, tensors, requests = self._plan, self._root.tensors, self._requests
        response = InferenceResponse(requests.name, requests.version, self.pending.request.id)
        if ONCE in plan.leaves:
            found = []
            for name in plan.wanted:
                tensor = tensors.get(name)
                if tensor is not None:
                    found.append((name, tensor))
                elif self._root.lacks(name):
                    log.debug("Composing models did not output tensor %s of ensemble '%s'", name, requests.name)
                else:
                    text = (
                        "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
                    )
                    text = f"{self.pending.request.prefix}{text}: no step has set '{name}'"
                    self.fail(InferenceError(text, ErrorCode.INVALID_ARG))
                    return
            add_outputs(response, found, ONCE, requests.signature, self.pending.request)
        else:
            response.empty = True
        self.ended = True
        requests.answer(self, response)
        self.close_if_idle()

    def fail(self, error: InferenceError) -> None:
        """The first error ends the request; running steps are cancelled, and their responses dropped."""
        if self.ended:
            return
        self.ended = True
        if error is not CANCELLED:
            error = InferenceError(f"in ensemble '{self._requests.name}', {error.message}", error.code)
        requests = self._requests
        response = InferenceResponse(requests.name, requests.version, self.pending.request.id, error=error)
        # On the next loop turn: the request may have been submitted in this one, and a model that fails one step at
        # once may be about to fail another.
        loop = asyncio.get_running_loop()
        loop.call_soon(requests.answer, self, response)
        loop.call_soon(self._steps.give_up)
        self.close_if_idle()

    def on_fault(self, error: Exception) -> None:
        """End the request after an error of the server."""
        log.error("a request to ensemble '%s' failed", self._requests.name, exc_info=error)
        self.fail(InferenceError("internal error: see the server's log"))

    def close_if_idle(self) -> None:
        """Leave the steps and the request once nothing runs that nobody waits for."""
        if not self.ended or self._closed or self._steps.copying:
            return
        self._root.abandon()  # even while abandoned steps run: they already hold their inputs
        if not self._steps.open:
            self._closed = True
            self.pending.wait()
            del self._steps  # nothing refers to each other any more, which garbage collection would have to find
            self._requests.on_end(self)


class EnsembleRequests(RequestOutcomes):
    """Runs requests through the steps, and answers them.

    Attributes:
        answers: the cached answers, to be renewed whenever the parts change; None if requests are always run.
        runs: the requests of which a step is running, even if they are abandoned, and the versions that run them.
        signature: the ensemble's signature, as made by its current parts.
        router: accepts the requests to steps.
        most_inflight: limit on the requests that one request has open with each step.
    """

    def __init__(self, model: Model, host: ModelHost, router: ModelRouter) -> None:
        super().__init__(model)
        self.signature = model.signature
        self.answers, path = response_path(host, model.config, b"", self)
        self._deliver = guarded(path)
        self.router = router
        self.most_inflight = most_inflight(model.config) or MOST_INFLIGHT
        self.runs: dict[EnsembleRun, EnsembleBinding] = {}
        self._looked_up: dict[PendingRequest, EnsembleBinding] = {}

    def run(self, pending: PendingRequest, binding: EnsembleBinding) -> None:
        plan = binding.plan(pending.request.requested_outputs)
        run = EnsembleRun(self, plan, pending)
        self.runs[run] = binding
        run.start()

    def look_up(self, pending: PendingRequest, binding: EnsembleBinding) -> None:
        """Answer a request from the cache, or run it."""
        assert self.answers is not None
        self._looked_up[pending] = binding
        self.answers.submit(pending)

    def enqueue(self, pending: PendingRequest) -> None:
        self.run(pending, self._looked_up.pop(pending))

    def on_hit(self, pending: PendingRequest, response: InferenceResponse) -> None:
        self._looked_up.pop(pending).leave()
        super().on_hit(pending, response)

    def on_dropped(self, pending: PendingRequest, error: InferenceError = CANCELLED) -> None:
        self._looked_up.pop(pending).leave()
        super().on_dropped(pending, error)

    def answer(self, run: EnsembleRun, response: InferenceResponse) -> None:
        pending = run.pending
        pending.succeeded &= response.error is None
        if not response.final:
            self._deliver(pending, response)
            return
        if pending.succeeded:
            request = pending.request
            now_ns = time.monotonic_ns()
            self.statistics.add_pass(request.batch_size, now_ns - request.queued_ns, now_ns)
        else:
            reason = FailureReason.CANCELED if pending.cancelled else FailureReason.OTHER
            self.statistics.add_failure(reason, pending.request.queued_ns)
        self._answer(pending, response)

    def on_end(self, run: EnsembleRun) -> None:
        self.runs.pop(run).leave()
        self._open_requests.wake()

    async def end(self) -> None:
        """The ensemble is being unloaded: wait for cache lookups, and end all remaining runs."""
        if self.answers is not None:
            await self.answers.finish()
        for run in list(self.runs):
            what = f"the request to model '{self.name}' was still running when it was unloaded"
            run.fail(InferenceError(what, ErrorCode.UNAVAILABLE))
