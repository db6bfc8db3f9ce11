"""The server's side of ``pb_utils``: dispatches models' calls and questions to their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.calls.groupable import GroupableCalls
from pybackend.frontend.calls.model_calls import CallsFromModels, OpenCall
from pybackend.frontend.calls.open_bytes import OpenBytes
from pybackend.frontend.calls.other_servers import OtherServers
from pybackend.frontend.calls.questions import ModelQuestions, on_metric_question
from pybackend.inference.pending import PendingRequest, RunningExecution
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.validation import Checked, validate
from pybackend.instance.services import CallingStub
from pybackend.ipc import stub_messages as heard
from pybackend.model.host import NotLoaded
from pybackend.model.model import Model
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend.repository.catalogue import ModelCatalogue


class StubCallDispatcher:
    """See :class:`pybackend.instance.services.StubServices`. Calls to models of other servers go to ``others``."""

    def __init__(self, engine: InferenceEngine, catalogue: ModelCatalogue, others: OtherServers | None = None) -> None:
        self.metrics = CustomMetrics()  # the custom metrics of all models
        self._catalogue = catalogue
        self._open_bytes = OpenBytes()
        self.groupable = GroupableCalls(catalogue.representative)
        self._calls = CallsFromModels(
            engine, catalogue.names, self._open_bytes, self._check_cycles, self.groupable.made, others
        )
        self._control = ModelQuestions(engine, catalogue.names, self._open_bytes, others)

    def on_call(self, caller: CallingStub, call: heard.Call, tail: bytes) -> None:
        self._calls.on_call(caller, call, tail)

    def _check_cycles(self, calls: Sequence[OpenCall]) -> None:
        """Fail calls that would wait for themselves; the schedulers have already dispatched everything they could."""
        waiting = [call for call in calls if _is_waiting(call)]
        if not waiting:
            return
        graph = WaitGraph(waiting, self._calls.open_calls)
        failed: object = None  # the execution of which calls have failed since the last look at the graph
        for call in waiting:
            execution = call.caller, call.message.execution
            if failed is not None and failed != execution:
                graph.update()
                failed = None
            cycle = graph.cycle(call)
            if cycle:
                failed = execution
                name = call.message.model_name
                call.failure = InferenceError(
                    f"Model {name} - Error when running inference: the call can never be served, as models wait for each "
                    f"other and no instance is free: {' -> '.join(cycle)}. Give one of them more instances "
                    "(instance_group { count: ... }), or do without the call",
                    ErrorCode.UNAVAILABLE,
                )
                assert call.pending is not None
                call.pending.cancel()

    def on_local_call(self, code: int | None) -> None:
        """A model has run another one in the process that they share, which answered with this error or a result."""
        self._calls.count(code)

    def on_cancel_call(self, caller: CallingStub, call: int) -> None:
        """The model wants no more responses to a call."""
        self._calls.on_cancel_call(caller, call)

    def on_cancelled(self, caller: CallingStub, execution: int) -> None:
        """Nobody waits for an execution any more."""
        self._calls.on_cancelled(caller, execution)

    def on_question(self, caller: CallingStub, question: heard.Question, tail: bytes) -> None:
        """The model asks about metrics or models."""
        if isinstance(question, heard.LoadModel | heard.UnloadModel | heard.IsModelReady):
            self._control.on_question(caller, question, tail)
        else:
            on_metric_question(self.metrics, caller, question)

    def on_gone(self, caller: CallingStub) -> None:
        self._calls.on_gone(caller)
        self._open_bytes.on_gone(caller)
        self.metrics.on_gone(caller)

    def on_given_up(self) -> None:
        """An instance does not come back soon."""
        self.check_cycles()

    def on_turn(self, model_name: str) -> None:
        """A model has lost its last instance, or has one again."""
        self._catalogue.ensembles.on_change(model_name)

    def check_cycles(self) -> None:
        """Fail calls that now wait for themselves, because the models that run them wait for something new."""
        self._check_cycles(self._calls.all_open_calls())

    def on_retired(self, instance: object) -> None:
        """This instance will have no more stubs."""
        self.metrics.on_retired(instance)


class EnsembleDoor:
    """See :class:`pybackend.model.host.ModelRouter`."""

    def __init__(self, engine: InferenceEngine, catalogue: ModelCatalogue, services: StubCallDispatcher) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._services = services
        self._checks = False

    def find(self, name: str, version: str = "", home: str = "") -> Model:
        """The version that stands for a model; see :meth:`ModelRouter.find`."""
        catalogue = self._catalogue
        return catalogue.representative(catalogue.names.known(name, home), version)

    def absence(self, name: str, home: str = "") -> NotLoaded:
        """The reason why no version of a model serves."""
        return self._catalogue.absence(name, home)

    def submit(
        self,
        model: Model,
        request: InferenceRequest,
        on_response: OnResponse,
        any_version: bool,
        checked: Checked = Checked.NOTHING,
    ) -> PendingRequest:
        """Validate a request against the model's signature and queue it; see :meth:`ModelRouter.submit`.

        Raises InferenceError: the request is refused, and its memory remains the caller's.
        """
        if checked is not Checked.ALL:
            validate(request, model.signature)
        if model.is_newest or not any_version:
            return self._engine.submit(model, request, on_response)
        return self._engine.distribute(model, request, on_response, is_chosen=False)

    def on_queued(self) -> None:
        """A model that waits for an ensemble now waits for something else: check whether it waits for itself."""
        if not self._checks:
            self._checks = True
            asyncio.get_running_loop().call_soon(self._check)  # after schedulers have dispatched everything they can

    def _check(self) -> None:
        self._checks = False
        self._services.check_cycles()


def _is_waiting(call: OpenCall) -> bool:
    """False for nearly every call, as its execution has begun; every cycle contains one for which it is true."""
    pending = call.pending
    return pending is not None and not pending.answered and not pending.holder.is_running(pending)


class WaitGraph:
    """The executions and calls that wait for each other, as far as they concern some calls.

    An execution is stuck if it has a blocked call. A call is blocked if it can continue only after one of several
    executions ends, and all of them are stuck. Initially, every execution with an open call counts as stuck; executions
    that can continue are then removed until nothing changes. ``calls`` are the most recent ones: only they can have
    closed a cycle.
    """

    def __init__(self, calls: Iterable[OpenCall], open_calls: Callable[[Any], Sequence[OpenCall]]) -> None:
        self._open_calls = open_calls
        self._calls: dict[RunningExecution, list[OpenCall]] = {}
        self._stuck: set[RunningExecution] = set()
        self._add(calls)
        self.update()

    def cycle(self, call: OpenCall) -> list[str]:
        """The model names along the cycle that ``call`` closed, the first name repeated at the end; empty if none."""
        if not self._is_blocked(call):
            return []
        names = [call.waiting_model]
        while call.admission is not None:
            name = call.admission.full_name
            names.append(name)
            if name in names[:-1]:
                break
            execution = next((each for each in _blockers(call) if each in self._stuck), None)
            if execution is None:
                return []
            call = next(waiting for waiting in self._calls[execution] if self._is_blocked(waiting))
            part = call.waiting_model
            if part != name:  # the model is an ensemble, and waits for this part of it
                names.append(part)
                if part in names[:-1]:
                    break
        return names[names.index(names[-1]) :]

    def _add(self, calls: Iterable[OpenCall]) -> None:
        """Add the executions of the models that these calls run, the calls those wait for, and so on."""
        models = {part for call in calls if call.admission is not None for part in call.admission.runs_in}
        instances = [instance for model in models for instance in model.instances]
        for execution in [execution for instance in instances for execution in instance.executor.running]:
            if execution in self._calls or execution.caller is None:
                continue
            waiting = [
                call for call in self._open_calls(execution.caller) if call.message.execution == execution.number
            ]
            if waiting:
                self._calls[execution] = waiting
                self._stuck.add(execution)
                self._add(waiting)

    def update(self) -> None:
        """Remove executions that can continue, since calls have been answered or have failed."""
        while True:
            free = {
                execution
                for execution in self._stuck
                if not any(self._is_blocked(call) for call in self._calls[execution])
            }
            if not free:
                return
            self._stuck -= free

    def _is_blocked(self, call: OpenCall) -> bool:
        if call.pending is None or call.pending.answered or call.failure is not None:
            return False
        blockers = _blockers(call)
        return bool(blockers) and all(execution in self._stuck for execution in blockers)


def _blockers(call: OpenCall) -> Sequence[RunningExecution]:
    assert call.pending is not None
    return call.pending.holder.blockers(call.pending)
