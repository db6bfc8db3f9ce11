"""Steps of an ensemble that may run one after the other in the process of the first of them, without the server."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.inference.request import FollowingSteps
from pybackend.inference.tensor import InputTensor
from pybackend.model.ensemble.planned_step import PlannedStep
from pybackend.model.ensemble.scope import EnsembleTensor, Scope
from pybackend_wire.host_messages import NextStep, Program
from pybackend_wire.messages import INLINE_BYTES


def path_from(first: PlannedStep, wanted: Sequence[str]) -> StepPath | None:
    """The steps that can follow a step in its process; None if there are none.

    Each is the only one that the ensemble could begin with at that time: steps that could run beside each other do so.
    """
    steps = [first]
    while (following := _only_one(steps)) is not None:
        steps.append(following)
    return StepPath(steps, wanted) if len(steps) > 1 else None


def _only_one(steps: Sequence[PlannedStep]) -> PlannedStep | None:
    """The only step that can begin when these have ended, if it runs where they did."""
    first, place = steps[0], steps[0].model.membership
    waiting = {follower for step in steps for follower in step.followers} - set(steps)
    for step in waiting:
        if waiting - {step} <= _after(step):
            there = step.model.membership
            is_like = step.chain == first.chain and step.batched == first.batched
            return step if is_like and place and there and there.group is place.group else None
    return None


def _after(step: PlannedStep) -> set[PlannedStep]:
    """The steps that can begin only when this one has ended."""
    found: set[PlannedStep] = set()
    left = list(step.followers)
    while left:
        follower = left.pop()
        if follower not in found:
            found.add(follower)
            left += follower.followers
    return found


class StepPath:
    """The steps that may follow one in its process.

    Attributes:
        steps: those that may follow it, in order.
    """

    def __init__(self, steps: Sequence[PlannedStep], wanted: Sequence[str]) -> None:
        self.steps = steps[1:]
        self._first = steps[0]
        self._wanted = wanted
        self._programs: dict[int, Program] = {}
        made: set[str] = set(steps[0].outputs.values())
        self._given: list[list[str]] = []  # for each step, the tensors that it uses and none before it makes
        for step in self.steps:
            self._given.append([name for name in step.needs if name not in made])
            made.update(step.outputs.values())

    def following(self, scope: Scope) -> FollowingSteps | None:
        """The steps that may follow this time; None if none may."""
        tensors: dict[str, InputTensor] = {}
        length = 0
        for step, names in zip(self.steps, self._given, strict=True):
            if step.any_version and not step.model.is_newest:
                break
            found = {name: scope.find(name) for name in names}
            if not all(self._can_have(step, name, tensor) for name, tensor in found.items()):
                break
            for name, tensor in found.items():
                if tensor is not None and name not in self._first.needs and name not in tensors:
                    tensors[name] = InputTensor(name, tensor.datatype, tensor.shape, bytes(tensor.data))
            length += 1
        return FollowingSteps(self._program(length), list(tensors.values())) if length else None

    def _can_have(self, step: PlannedStep, name: str, tensor: EnsembleTensor | None) -> bool:
        """True if the process has a tensor that none of these steps makes, or can be sent it, in the shape that a step takes."""
        if tensor is None or tensor.batched != step.batched:
            return False
        is_small = len(tensor.data) <= INLINE_BYTES and tensor.correlation is None
        return is_small or name in self._first.needs

    def _program(self, length: int) -> Program:
        program = self._programs.get(length)
        if program is None:
            steps = (self._first, *self.steps[:length])
            later = {name for step in steps[1:] for name in step.needs}
            outside = {
                name
                for step in steps
                for follower in step.followers
                if follower not in steps
                for name in follower.needs
            }
            made = [name for step in steps for name in step.outputs.values()]
            program = self._programs[length] = Program(
                [(name, tensor) for name, tensor in self._first.inputs if tensor in later],
                list(self._first.outputs.items()),
                [_next_step(step) for step in steps[1:]],
                [name for name in made if name in outside or name in self._wanted],
            )
        return program


def _next_step(step: PlannedStep) -> NextStep:
    assert step.model.membership is not None
    return NextStep(step.model.membership.member, step.inputs, list(step.outputs.items()))
