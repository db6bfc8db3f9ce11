"""The tensors of one request to an ensemble, the memory they lie in, and which of them belong together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.model.ensemble_plan import PlannedStep
from pybackend.model.ensemble_sequence import Correlation
from pybackend.modelconfig.ensemble import Chain


class _Owner(Protocol):
    def release(self) -> None:
        """Give the memory back. Every further call does nothing."""


class Memory:
    """What holds tensors: a response of a step, or an input of the request. It goes back as soon as nobody needs it.

    Args:
        owner: what is to be released.
        uses: how often its tensors are to be read.
    """

    __slots__ = ("_borrowers", "_owner", "_uses")

    def __init__(self, owner: _Owner, uses: int) -> None:
        self._owner = owner
        self._uses = uses
        self._borrowers = 0

    def used(self) -> None:
        """A tensor was read for one of the planned uses."""
        self._uses -= 1
        self._release_if_unneeded()

    def abandon(self) -> None:
        """What was planned will not happen."""
        self._uses = 0
        self._release_if_unneeded()

    def borrow(self) -> None:
        """A response refers to this memory until :meth:`give_back`."""
        self._borrowers += 1

    def give_back(self) -> None:
        """The response is released."""
        self._borrowers -= 1
        self._release_if_unneeded()

    def _release_if_unneeded(self) -> None:
        if self._uses <= 0 and not self._borrowers:
            self._owner.release()


class EnsembleTensor:
    """A tensor that flows through the ensemble.

    Attributes:
        datatype: wire name.
        shape: as its producer gave it.
        data: its bytes.
        batched: True if the first dimension is the batch's.
        chain: the streams through which it has come.
        memory: where ``data`` lies.
        given: the request's own input that this is, None for what a step has made.
        correlation: the sequence that it belongs to if a step has named one, else None.
    """

    __slots__ = ("batched", "chain", "correlation", "data", "datatype", "given", "memory", "shape")

    def __init__(
        self,
        datatype: str,
        shape: Sequence[int],
        data: Buffer,
        memory: Memory,
        *,
        batched: bool,
        chain: Chain,
        given: InputTensor | None = None,
    ) -> None:
        self.datatype = datatype
        self.shape = shape
        self.data = data
        self.memory = memory
        self.batched = batched
        self.chain = chain
        self.given = given
        self.correlation: Correlation | None = None

    def shape_for(self, dims: Sequence[int], *, batched: bool) -> Sequence[int]:
        """The shape as a taker wants it, where one of the two has a batch dimension and the other has not.

        Args:
            dims: what the taker's configuration says, without its batch dimension.
            batched: the taker has one.
        """
        shape = self.shape
        if self.batched == batched or len(shape) == len(dims) + batched:
            return shape
        if batched:
            return [1, *shape]
        return shape[1:] if shape and shape[0] == 1 else shape


class Scope:
    """Tensors that belong together: those of the request, or those that follow from one response of a stream.

    Attributes:
        chain: the streams that it is within.
        parent: the scope that the stream's step runs in; None for the request's.
        waiting: the steps of this scope that have not begun.
        streams: the scopes that follow from responses of each step, by its number, in the order of the responses; those
            whose own responses are sent have left.
        running: steps that run, and scopes in ``streams``.
        unsettled: those of the running steps whose tensors will be this scope's own.
    """

    __slots__ = ("_memories", "_tensors", "chain", "parent", "running", "streams", "unsettled", "waiting")

    def __init__(self, chain: Chain, parent: Scope | None, steps: Sequence[PlannedStep]) -> None:
        self.chain = chain
        self.parent = parent
        self.waiting = list(steps)
        self.streams: dict[int, deque[Scope]] = {}
        self.running = 0
        self.unsettled = 0
        self._tensors: dict[str, EnsembleTensor] = {}
        self._memories: list[Memory] = []

    def put(self, name: str, tensor: EnsembleTensor) -> None:
        """A tensor has come to be."""
        self._tensors[name] = tensor

    def keep(self, memory: Memory) -> None:
        """Give this memory back at the latest when the scope ends."""
        self._memories.append(memory)

    def find(self, name: str) -> EnsembleTensor | None:
        """A tensor of this scope, or of those that it follows from."""
        scope: Scope | None = self
        while scope is not None:
            tensor = scope._tensors.get(name)
            if tensor is not None:
                return tensor
            scope = scope.parent
        return None

    @property
    def is_settled(self) -> bool:
        """True if no more tensors will come to be in it, or in those that it follows from."""
        return not self.unsettled and (self.parent is None or self.parent.is_settled)

    def abandon(self) -> None:
        """Forget the tensors, its own and those of the scopes that follow; their memory stays as long as responses need it."""
        for scopes in self.streams.values():
            for scope in scopes:
                scope.abandon()
        self.streams.clear()
        self._tensors.clear()
        memories, self._memories = self._memories, []
        for memory in memories:
            memory.abandon()
