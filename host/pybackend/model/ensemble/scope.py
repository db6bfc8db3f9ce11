"""The tensors of one ensemble request, their memory, and the scopes that group them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.model.ensemble.planned_step import PlannedStep
from pybackend.modelconfig.ensemble import Chain

Correlation = tuple[int | str, int]
"""Correlation id and flags."""


class SharedTensors(Struct, eq=False):
    """The owner of shared tensor memory: a step's response or a request's input. It is released after its last use.

    Attributes:
        uses: planned number of reads of its tensors that are not done.
        borrowers: number of responses that use it.
    """

    owner: InferenceResponse | InputTensor
    uses: int
    borrowers: int = 0

    def used(self) -> None:
        """One planned read of a tensor is done."""
        self.uses -= 1
        self._release_if_unneeded()

    def abandon(self) -> None:
        """The planned reads will not happen."""
        self.uses = 0
        self._release_if_unneeded()

    def borrow(self) -> None:
        """A response uses this memory until :meth:`give_back`."""
        self.borrowers += 1

    def give_back(self) -> None:
        """The response was released."""
        self.borrowers -= 1
        self._release_if_unneeded()

    def _release_if_unneeded(self) -> None:
        if self.uses <= 0 and not self.borrowers:
            self.owner.release()


class EnsembleTensor(Struct, eq=False):
    """A tensor that flows through the ensemble.

    Attributes:
        shape: exactly as its producer returned it.
        batched: True if the first dimension is the batch dimension.
        chain: the streams that it has come through.
        memory: the owner of ``data``; None if that is private to the host.
        given: the corresponding input of the request, None for a step's output.
        correlation: its sequence, if a step has named one, else None.
    """

    datatype: str
    shape: Sequence[int]
    data: Buffer
    memory: SharedTensors | None
    batched: bool
    chain: Chain
    given: InputTensor | None = None
    correlation: Correlation | None = None

    def shape_for(self, dims: Sequence[int], *, batched: bool) -> Sequence[int]:
        """The shape for a consumer with these configured dimensions, beside which it may have a batch dimension."""
        shape = self.shape
        if self.batched == batched or len(shape) == len(dims) + batched:
            return shape
        if batched:
            return [1, *shape]
        return shape[1:] if shape and shape[0] == 1 else shape


class Scope:
    """A group of tensors: those of the request, or those that depend on one response of a stream.

    Attributes:
        chain: the streams that enclose it.
        tensors: those of this scope, by name. Each comes once.
        parent: the scope in which the stream's step runs; None for the request's scope.
        waiting: this scope's steps that have not started.
        streams: the child scopes of each step's responses, by step number, in response order; a scope leaves once its
            responses are sent.
        running: number of running steps and of scopes in ``streams``.
        unsettled: number of running steps that will add tensors to this scope.
    """

    __slots__ = ("_memories", "_missing", "chain", "parent", "running", "streams", "tensors", "unsettled", "waiting")

    def __init__(self, chain: Chain, parent: Scope | None, steps: Sequence[PlannedStep]) -> None:
        self.chain = chain
        self.parent = parent
        self.waiting = list(steps)
        self.streams: dict[int, deque[Scope]] = {}
        self.running = 0
        self.unsettled = 0
        self.tensors: dict[str, EnsembleTensor] = {}
        self._memories: list[SharedTensors] = []
        self._missing: set[str] = set()

    def mark_missing(self, names: Iterable[str]) -> None:
        """Note tensors that are missing in the response of a step."""
        self._missing.update(names)

    def lacks(self, name: str) -> bool:
        """True if a tensor is missing in the response of a step, of this scope or its ancestors."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._missing:
                return True
            scope = scope.parent
        return False

    def keep(self, memory: SharedTensors) -> None:
        """Release this memory at the end of the scope at the latest."""
        self._memories.append(memory)

    def find(self, name: str) -> EnsembleTensor | None:
        scope: Scope | None = self
        while scope is not None:
            tensor = scope.tensors.get(name)
            if tensor is not None:
                return tensor
            scope = scope.parent
        return None

    @property
    def is_settled(self) -> bool:
        """True if no more tensors will be added to it or its ancestors."""
        return not self.unsettled and (self.parent is None or self.parent.is_settled)

    def abandon(self) -> None:
        """Drop the tensors of this scope and its descendants; responses keep the memory that they need."""
        for scopes in self.streams.values():
            for scope in scopes:
                scope.abandon()
        self.streams.clear()
        self.tensors.clear()
        if self._memories:
            memories, self._memories = self._memories, []
            for memory in memories:
                memory.abandon()
