"""Calls that can never be served: each instance that could serve them is busy with a request that waits for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybackend.frontend.bls.calls import OpenCall
from pybackend.inference.pending import PendingRequest
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.services import Caller
from pybackend.model.ensemble_run import EnsembleRun
from pybackend.model.model import Model

Execution = tuple[ModelInstance, int]
"""An instance, and the number of an execution that runs there."""


class WaitGraph:
    """Who waits for whom, as far as it matters for one call.

    An execution is stuck if it has a call that is blocked. A call is blocked if what runs it is stuck, or, where nothing
    runs it, if every instance that could is full of stuck executions; a call to an ensemble, if that is so for all its
    steps under way. All is assumed to be stuck that has a call at all, until what can go on has been found to be able to.

    Args:
        call: the call that was made last; only it can have closed a cycle.
        open_calls: the calls of a stub.
    """

    def __init__(self, call: OpenCall, open_calls: Callable[[Caller], Sequence[OpenCall]]) -> None:
        self._open_calls = open_calls
        self._calls: dict[Execution, list[OpenCall]] = {}
        self._stuck: set[Execution] = set()
        self._add(call.model)
        self._settle()

    def cycle(self, call: OpenCall) -> list[str]:
        """The names of the models of a cycle that ``call`` has closed, the first one again at the end; empty if none."""
        if not self._is_blocked(call):
            return []
        names = [call.caller.model_name]
        while call.model is not None:
            name = call.model.name
            names.append(name)
            if name in names[:-1]:
                break
            stuck = (execution for execution in self._runners(call) if execution in self._stuck)
            execution = next(stuck, None)
            if execution is None:
                return []
            call = next(waiting for waiting in self._calls[execution] if self._is_blocked(waiting))
            part = call.caller.model_name
            if part != name:  # the model is an ensemble, and waits for this part of it
                names.append(part)
                if part in names[:-1]:
                    break
        return names[names.index(names[-1]) :]

    def _add(self, model: Model | None) -> None:
        """Take in what the instances of a model wait for, and so on."""
        models = () if model is None else model.runs_in
        for instance in (instance for each in models for instance in each.active_instances):
            for number in instance.running:
                if (instance, number) in self._calls or instance.session is None:
                    continue
                calls = [call for call in self._open_calls(instance.session) if call.message.execution == number]
                if calls:
                    self._calls[instance, number] = calls
                    self._stuck.add((instance, number))
                    for call in calls:
                        self._add(call.model)

    def _settle(self) -> None:
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
        if call.model is None or call.pending is None or call.pending.answered:
            return False
        runners = self._runners(call)
        return bool(runners) and all(execution in self._stuck for execution in runners)

    def _runners(self, call: OpenCall) -> list[Execution]:
        """What runs a call, or what must end before it can run; empty if it can run now."""
        assert call.pending is not None
        assert call.model is not None
        return _runners_of(call.pending, call.model)


def _runners_of(pending: PendingRequest, model: Model) -> list[Execution]:
    runner = pending.runner
    if isinstance(runner, EnsembleRun):
        steps = [_runners_of(step, part) for step, part in runner.steps_under_way]
        return [execution for runners in steps for execution in runners] if all(steps) else []
    if isinstance(runner, ModelInstance):
        running = list(runner.running)
        return [
            (runner, number) for number in running if number == pending.execution or pending.execution not in running
        ]
    if any(instance.has_place for instance in model.active_instances):
        return []
    return [(instance, number) for instance in model.active_instances for number in instance.running]


def is_under_way(pending: PendingRequest) -> bool:
    """True if a request runs: to give it up would not end it at once, as it ends one that waits."""
    runner = pending.runner
    if isinstance(runner, EnsembleRun):
        return all(is_under_way(step) for step, _ in runner.steps_under_way)
    return isinstance(runner, ModelInstance) and pending.execution in runner.running
