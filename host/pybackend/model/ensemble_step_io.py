"""What goes into a step of an ensemble and what comes out of it.

A tensor goes to the step's model as it is if it lies in its memory already, else by one copy; what comes out stays where the
model has left it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pybackend.inference.copying import LARGE_COPY_BYTES, copy_bytes
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, InputTensor, OutputTensor
from pybackend.model.ensemble_plan import ONCE, EnsemblePlan, PlannedStep
from pybackend.model.ensemble_scope import EnsembleTensor, Memory, Scope
from pybackend.model.ensemble_sequence import Correlation, named_correlation
from pybackend.model.model import Model
from pybackend_wire.messages import INLINE_BYTES


class StepInputs:
    """The inputs of one request to a step; their bytes are there once they were copied.

    Attributes:
        tensors: for the request, which owns their memory.
        correlation: the sequence that they belong to by the word of a step before; None if none has named any.
    """

    def __init__(self) -> None:
        self.tensors: list[InputTensor] = []
        self.correlation: Correlation | None = None
        self._read: list[EnsembleTensor] = []
        self._copies: list[tuple[memoryview, Buffer]] = []

    def take(self, scope: Scope, step: PlannedStep, plan: EnsemblePlan) -> None:
        """Find room for the tensors that a step takes.

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
            data = tensor.data
            if len(data) <= INLINE_BYTES:
                self.tensors.append(InputTensor(name, tensor.datatype, shape, bytes(data)))
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
        """True if the event loop must not wait for the copies."""
        return any(len(target) >= LARGE_COPY_BYTES for target, _ in self._copies)

    def copy(self) -> None:
        """Make the copies now."""
        for target, source in self._copies:
            target[:] = source

    async def copy_slowly(self) -> None:
        """Make the copies, large ones in another thread."""
        for target, source in self._copies:
            await copy_bytes(target, source)

    def used(self, scope: Scope) -> None:
        """The tensors are where the step needs them: the scope whose own they are need not keep them for it."""
        for tensor in self._read:
            if tensor.chain == scope.chain:
                tensor.memory.used()

    def release(self) -> None:
        """Give the memory back: there will be no request."""
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
) -> Iterable[str]:
    """Make a step's outputs tensors of the ensemble; returns their names.

    Args:
        response: the step's answer, which is released as soon as its outputs are read.
        step: that answered.
        correlation: the sequence that the step's inputs belonged to by the word of a step before it.
        at: where the tensors belong.
        plan: says how often they are read.
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
        return ()
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
    return outputs
