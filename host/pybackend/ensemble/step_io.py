"""Moves tensors into and out of an ensemble's steps.

A tensor already in the memory of the step's model is passed on directly; any other is copied once. Outputs stay where
the model left them.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from pybackend.ensemble.plan import ONCE, EnsemblePlan, PlannedStep
from pybackend.ensemble.scope import EnsembleTensor, Memory, Scope
from pybackend.ensemble.sequence import Correlation, named_correlation
from pybackend.inference.copying import LARGE_COPY_BYTES, copy_bytes
from pybackend.inference.region import source_of, tensor_in_region
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, InputTensor, OutputTensor
from pybackend.model.model import Model
from pybackend_wire.messages import INLINE_BYTES


class StepInputs:
    """The inputs of one request to a step; :meth:`copy` or :meth:`copy_slowly` fills in their bytes.

    Attributes:
        tensors: for the request, which owns their memory.
        correlation: their sequence, if an earlier step has named one, else None.
        has_regions: some of them lie in clients' regions, where the step's own process reads them.
    """

    def __init__(self) -> None:
        self.has_regions = False
        self.tensors: list[InputTensor] = []
        self.correlation: Correlation | None = None
        self._read: list[EnsembleTensor] = []
        self._copies: list[tuple[memoryview, Buffer]] = []

    def take(self, scope: Scope, step: PlannedStep, plan: EnsemblePlan) -> None:
        """Allocate memory for a step's inputs.

        Raises:
            InferenceError: UNAVAILABLE, the step's model has no memory left.
        """
        for name, tensor_name in step.inputs:
            tensor = scope.find(tensor_name)
            if tensor is None:
                continue  # an optional input that the client left out
            self._read.append(tensor)
            if self.correlation is None:
                self.correlation = tensor.correlation
            shape = tensor.shape if tensor.batched == step.batched else _shape(step, name, tensor)
            source = None if tensor.given is None else source_of(tensor.given)
            if source is not None:
                self.tensors.append(tensor_in_region(name, tensor.datatype, shape, source))
                self.has_regions = True
            elif len(tensor.data) <= INLINE_BYTES:
                self.tensors.append(InputTensor(name, tensor.datatype, shape, bytes(tensor.data)))
            else:
                is_only_use = step.chain == ONCE and plan.uses(tensor_name) == 1
                self.tensors.append(self._large_input(step.model, name, tensor, shape, is_only_use))

    def _large_input(
        self, model: Model, name: str, tensor: EnsembleTensor, shape: Sequence[int], is_only_use: bool
    ) -> InputTensor:
        result, given = InputTensor(name, tensor.datatype, shape), tensor.given
        if is_only_use and given is not None and given.lease is not None and model.owns(given.lease):
            result.lease, result.data, given.lease = given.lease, given.data, None
        else:
            result.lease = model.lease(len(tensor.data), name)
            result.data = result.lease.view
            self._copies.append((result.lease.view, tensor.data))
        return result

    @property
    def take_long(self) -> bool:
        """True if the copies would block the event loop for too long."""
        return any(len(target) >= LARGE_COPY_BYTES for target, _ in self._copies)

    def copy(self) -> None:
        """Make the copies now."""
        for target, source in self._copies:
            target[:] = source

    async def copy_slowly(self) -> None:
        """Make the copies, large ones in a thread."""
        for target, source in self._copies:
            await copy_bytes(target, source)

    def used(self, scope: Scope) -> None:
        """The step has its tensors: the scope no longer keeps them for it."""
        for tensor in self._read:
            if tensor.chain == scope.chain:
                tensor.memory.used()

    def release(self) -> None:
        """Release the memory, because there will be no request."""
        for tensor in self.tensors:
            tensor.release()


def _shape(step: PlannedStep, name: str, tensor: EnsembleTensor) -> Sequence[int]:
    expected = step.model.signature.inputs.get(name)
    return tensor.shape if expected is None else tensor.shape_for(expected.dims, batched=step.batched)


def take_outputs(
    response: InferenceResponse,
    step: PlannedStep,
    correlation: Correlation | None,
    at: Scope,
    plan: EnsemblePlan,
    whole: InferenceRequest,
) -> AbstractSet[str]:
    """Turn a step's outputs into tensors of the ensemble; returns their names.

    Args:
        response: the step's response, which is released once its outputs have been read.
        step: the step that sent it.
        correlation: the sequence of the step's inputs, if an earlier step has named one.
        at: the scope to add the tensors to.
        plan: gives the number of reads of each tensor.
        whole: the request to the ensemble.
    """
    outputs: dict[str, OutputTensor] = {}
    for output in response.outputs:
        name = step.outputs.get(output.name)
        if name is not None:
            outputs[name] = output
    memory = Memory(response, plan.uses_of_all(outputs))
    if not outputs:
        memory.abandon()
        return frozenset()
    at.keep(memory)
    if response.parameters:
        own = correlation or (whole.correlation_id, whole.flags)
        correlation = named_correlation(response.parameters, own) or correlation
    for name, output in outputs.items():
        tensor = EnsembleTensor(
            output.datatype, output.shape, output.data, memory, batched=step.batched, chain=at.chain
        )
        tensor.correlation = correlation
        at.put(name, tensor)
    return outputs.keys()
