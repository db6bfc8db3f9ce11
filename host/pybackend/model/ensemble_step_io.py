"""What goes into a step of an ensemble and what comes out of it.

A tensor goes to the step's model as it is if it lies in its memory already, else by one copy; what comes out stays where the
model has left it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.inference.copying import LARGE_COPY_BYTES, copy_bytes
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.model.ensemble_plan import ONCE, EnsemblePlan, PlannedStep
from pybackend.model.ensemble_scope import EnsembleTensor, Memory, Scope
from pybackend.model.ensemble_sequence import Correlation, named_correlation
from pybackend_wire.messages import INLINE_BYTES


class StepInputs:
    """The inputs of one request to a step; their bytes are there once they were copied.

    Attributes:
        tensors: for the request, which owns their memory.
    """

    def __init__(self) -> None:
        self.tensors: list[InputTensor] = []
        self._copies: list[tuple[memoryview, Buffer]] = []

    def take(self, scope: Scope, step: PlannedStep, plan: EnsemblePlan) -> None:
        """Find room for the tensors that a step takes.

        Raises:
            InferenceError: UNAVAILABLE, the step's model has no memory left.
        """
        for name, tensor_name in step.inputs:
            tensor = scope.find(tensor_name)
            if tensor is not None:  # else an optional input that the client left out
                is_only_use = step.chain == ONCE and plan.uses(tensor_name) == 1
                self.tensors.append(self._input(step, name, tensor, is_only_use))

    def _input(self, step: PlannedStep, name: str, tensor: EnsembleTensor, is_only_use: bool) -> InputTensor:
        model, given, nbytes = step.model, tensor.given, len(tensor.data)
        result = InputTensor(name, tensor.datatype, _shape(step, name, tensor))
        if nbytes <= INLINE_BYTES:
            result.data = bytes(tensor.data)
        elif is_only_use and given is not None and given.lease is not None and model.owns(given.lease):
            result.lease, result.data, given.lease = given.lease, given.data, None
        else:
            result.lease = model.lease(nbytes, name)
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

    def release(self) -> None:
        """Give the memory back: there will be no request."""
        for tensor in self.tensors:
            tensor.release()


def _shape(step: PlannedStep, name: str, tensor: EnsembleTensor) -> Sequence[int]:
    signature = step.model.signature
    expected = signature.inputs.get(name)
    return tensor.shape if expected is None else tensor.shape_for(expected.dims, batched=signature.max_batch_size > 0)


def take_outputs(
    response: InferenceResponse, step: PlannedStep, scope: Scope, at: Scope, plan: EnsemblePlan, whole: InferenceRequest
) -> list[str]:
    """Make a step's outputs tensors of the ensemble; returns their names.

    Args:
        response: the step's answer, which is released as soon as its outputs are read.
        step: that answered.
        scope: where it ran.
        at: where the tensors belong.
        plan: says how often they are read.
        whole: the request to the ensemble.
    """
    outputs = {step.outputs[output.name]: output for output in response.outputs if output.name in step.outputs}
    memory = Memory(response, sum(map(plan.uses, outputs)))
    if not outputs:
        memory.abandon()
        return []
    at.keep(memory)
    correlation = correlation_of(step, scope)
    if response.parameters:
        own = correlation or (whole.correlation_id, whole.flags)
        correlation = named_correlation(response.parameters, own) or correlation
    batched = step.model.signature.max_batch_size > 0
    for name, output in outputs.items():
        tensor = EnsembleTensor(output.datatype, output.shape, output.data, memory, batched=batched, chain=at.chain)
        tensor.correlation = correlation
        at.put(name, tensor)
    return list(outputs)


def correlation_of(step: PlannedStep, scope: Scope) -> Correlation | None:
    """The sequence that a step's inputs belong to by the word of a step before it; None if there is none."""
    tensors = (scope.find(name) for _, name in step.inputs)
    return next((tensor.correlation for tensor in tensors if tensor is not None and tensor.correlation), None)
