"""Detects deadlocks between calls: each instance that could serve a call is busy with a request that waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pybackend.frontend.calls.model_calls import OpenCall
from pybackend.inference.pending import RunningExecution


class WaitGraph:
    """The executions and calls that wait for each other, as far as they concern one call.

    An execution is stuck if it has a blocked call. A call is blocked if it can continue only after one of several
    executions ends, and all of them are stuck. Initially, every execution with an open call counts as stuck; executions
    that can continue are then removed until nothing changes.

    Args:
        call: the most recent call; only it can have closed a cycle.
        open_calls: returns the open calls of a caller.
    """

    def __init__(self, call: OpenCall, open_calls: Callable[[Any], Sequence[OpenCall]]) -> None:
        self._open_calls = open_calls
        self._calls: dict[RunningExecution, list[OpenCall]] = {}
        self._stuck: set[RunningExecution] = set()
        self._add([call])
        self._free()

    def cycle(self, call: OpenCall) -> list[str]:
        """The model names along the cycle that ``call`` closed, the first name repeated at the end; empty if none."""
        if not self._is_blocked(call):
            return []
        names = [call.caller.model_name]
        while call.admission is not None:
            name = call.admission.model.full_name
            names.append(name)
            if name in names[:-1]:
                break
            execution = next((each for each in _blockers(call) if each in self._stuck), None)
            if execution is None:
                return []
            call = next(waiting for waiting in self._calls[execution] if self._is_blocked(waiting))
            part = call.caller.model_name
            if part != name:  # the model is an ensemble, and waits for this part of it
                names.append(part)
                if part in names[:-1]:
                    break
        return names[names.index(names[-1]) :]

    def _add(self, calls: Iterable[OpenCall]) -> None:
        """Add the executions of the models that these calls run, the calls those wait for, and so on."""
        models = {part for call in calls if call.admission is not None for part in call.admission.model.runs_in}
        instances = [instance for model in models for instance in model.instances]
        for execution in [execution for instance in instances for execution in instance.running]:
            if execution in self._calls or execution.caller is None:
                continue
            waiting = [
                call for call in self._open_calls(execution.caller) if call.message.execution == execution.number
            ]
            if waiting:
                self._calls[execution] = waiting
                self._stuck.add(execution)
                self._add(waiting)

    def _free(self) -> None:
        """Remove executions that can continue."""
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
        if call.pending is None or call.pending.answered:
            return False
        blockers = _blockers(call)
        return bool(blockers) and all(execution in self._stuck for execution in blockers)


def _blockers(call: OpenCall) -> Sequence[RunningExecution]:
    assert call.pending is not None
    return call.pending.holder.blockers(call.pending)
