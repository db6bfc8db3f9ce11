"""Moves tensors into and out of an ensemble's steps, and into its responses.

A tensor already in the memory of the step's model is passed on directly; any other is copied once. Outputs stay where
the model left them.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct

from pybackend.inference.region import source_of, tensor_in_region
from pybackend.inference.request import InferenceRequest, ParameterValue, RequestFlags
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import LARGE_COPY_BYTES, Buffer, InputTensor, OutputTensor, copy_bytes
from pybackend.model.ensemble.plan import EnsemblePlan
from pybackend.model.ensemble.planned_step import ONCE, Layout, PlannedStep
from pybackend.model.ensemble.scope import Correlation, EnsembleTensor, Scope, SharedTensors
from pybackend.modelconfig.ensemble import Chain
from pybackend.modelconfig.signature import ModelSignature
from pybackend_wire.messages import INLINE_BYTES


class StepInputs(Struct, eq=False):
    """The inputs of one request to a step; :meth:`copy` or :meth:`copy_slowly` fills in their bytes.

    Attributes:
        tensors: for the request, which owns their memory.
        layout: of the tensors; empty if some are left out.
        correlation: their sequence, if an earlier step has named one, else None.
        has_regions: some of them lie in clients' regions, where the step's own process reads them.
        read: the memory of tensors that the scope need not keep for this step any longer.
        copies: where the bytes of tensors go, and where they are.
    """

    tensors: list[InputTensor] = []
    layout: Layout = ()
    correlation: Correlation | None = None
    has_regions: bool = False
    read: list[SharedTensors] = []
    copies: list[tuple[memoryview, Buffer]] = []

    def take(self, scope: Scope, step: PlannedStep, plan: EnsemblePlan) -> None:
        """Allocate memory for a step's inputs."""
        batched, near, tensors = step.batched, scope.tensors, self.tensors
        layout: list[object] = []
        for name, tensor_name in step.inputs:
            tensor = near.get(tensor_name) or scope.find(tensor_name)
            if tensor is None:
                continue  # an optional input that the client left out
            shape = tensor.shape
            if tensor.batched is not batched:
                shape = _shape(step, name, tensor)
            if tensor.correlation is not None:
                self.correlation = self.correlation or tensor.correlation
            size = len(tensor.data)
            if tensor.memory is None and size <= INLINE_BYTES:
                tensors.append(InputTensor(name, tensor.datatype, shape, tensor.data))
            else:
                tensors.append(self._shared_input(name, tensor_name, tensor, shape, scope, step, plan))
            layout += tensor.datatype, tuple(shape), size
        if len(tensors) == len(step.inputs):
            self.layout = tuple(layout)

    def _shared_input(
        self,
        name: str,
        tensor_name: str,
        tensor: EnsembleTensor,
        shape: Sequence[int],
        scope: Scope,
        step: PlannedStep,
        plan: EnsemblePlan,
    ) -> InputTensor:
        """An input whose bytes are large, or lie in memory that is released."""
        if tensor.memory is not None and tensor.chain == scope.chain:
            self.read.append(tensor.memory)
        given = tensor.given
        source = None if given is None else source_of(given)
        if source is not None:
            self.has_regions = True
            return tensor_in_region(name, tensor.datatype, shape, source)
        if len(tensor.data) <= INLINE_BYTES:
            return InputTensor(name, tensor.datatype, shape, bytes(tensor.data))
        result = InputTensor(name, tensor.datatype, shape)
        is_only_use = step.chain == ONCE and plan.uses(tensor_name) == 1
        if is_only_use and given is not None and given.lease is not None and step.model.owns(given.lease):
            result.lease, result.data, given.lease = given.lease, given.data, None
        else:
            result.lease = step.model.arena_of(name).lease(len(tensor.data))
            result.data = result.lease.view
            self.copies.append((result.lease.view, tensor.data))
        return result

    @property
    def take_long(self) -> bool:
        """True if the copies would block the event loop for too long."""
        return any(len(target) >= LARGE_COPY_BYTES for target, _ in self.copies)

    def copy(self) -> None:
        """Make the copies now."""
        for target, source in self.copies:
            target[:] = source

    async def copy_slowly(self) -> None:
        """Make the copies, large ones in a thread."""
        for target, source in self.copies:
            await copy_bytes(target, source)

    def used(self) -> None:
        """The step has its tensors: their memory is no longer kept for it."""
        for memory in self.read:
            memory.used()

    def release(self) -> None:
        """Release the memory, because there will be no request."""
        for tensor in self.tensors:
            tensor.release()


def _shape(step: PlannedStep, name: str, tensor: EnsembleTensor) -> Sequence[int]:
    expected = step.model.signature.inputs.get(name)
    return tensor.shape if expected is None else tensor.shape_for(expected.dims, batched=step.batched)


_FLAGS = (("sequence_start", RequestFlags.SEQUENCE_START), ("sequence_end", RequestFlags.SEQUENCE_END))
_NAMES = ("sequence_id", *(name for name, _ in _FLAGS))


def _named_correlation(parameters: Mapping[str, ParameterValue] | None, own: Correlation) -> Correlation | None:
    """The sequence named by a response's parameters, completed by the step's own; None if they name none."""
    if not parameters or parameters.keys().isdisjoint(_NAMES):
        return None
    correlation_id, flags = own
    wanted = parameters.get("sequence_id", correlation_id)
    if isinstance(wanted, str) or type(wanted) is int:
        correlation_id = wanted
    for name, flag in _FLAGS:
        if name in parameters:
            flags = flags | flag if parameters[name] else flags & ~flag
    return correlation_id, flags


def _correlation_parameters(correlation: Correlation) -> Mapping[str, ParameterValue]:
    """The response parameters that name a sequence."""
    correlation_id, flags = correlation
    return {"sequence_id": correlation_id, **{name: bool(flags & flag) for name, flag in _FLAGS}}


def take_outputs(
    response: InferenceResponse,
    step: PlannedStep,
    correlation: Correlation | None,
    at: Scope,
    plan: EnsemblePlan,
    whole: InferenceRequest,
) -> None:
    """Turn a step's outputs into tensors of the ensemble, and note which it has left out.

    The response is released once its outputs have been read. ``correlation`` is the sequence of the step's inputs, if
    an earlier step has named one; ``whole`` is the request to the ensemble.
    """
    if response.parameters:
        own = correlation or (whole.correlation_id, whole.flags)
        correlation = _named_correlation(response.parameters, own) or correlation
    memory = None if response.on_release is None else SharedTensors(response, 0)
    tensors, names, batched, chain = at.tensors, step.outputs, step.batched, at.chain
    made = 0
    for output in response.outputs:
        name = names.get(output.name)
        if name is None or name in tensors:  # of several outputs of one name, the first counts
            continue
        made += 1
        if memory is not None:
            memory.uses += plan.uses(name)
        tensors[name] = EnsembleTensor(
            output.datatype, output.shape, output.data, memory, batched, chain, None, correlation
        )
    if memory is not None:
        if made:
            at.keep(memory)
        else:
            memory.abandon()
    if made < len(names):
        at.mark_missing([name for name in names.values() if name not in tensors])


def add_outputs(
    response: InferenceResponse,
    found: Sequence[tuple[str, EnsembleTensor]],
    chain: Chain,
    signature: ModelSignature,
    whole: InferenceRequest,
) -> None:
    """Add outputs to the ensemble's response; their memory is kept until the response is released.

    The response belongs to the end of the streams ``chain``: only tensors that came through them are not needed again.
    It names the sequence of ``whole``, the request to the ensemble, unless a step has named another one.
    """
    memories: list[SharedTensors] = []
    named: Correlation | None = None
    batched = signature.max_batch_size > 0
    for name, tensor in found:
        memory = tensor.memory
        if memory is not None:
            memory.borrow()
            memories.append(memory)
            if tensor.chain == chain:
                memory.used()
        if named is None:
            named = tensor.correlation
        shape = tensor.shape
        if tensor.batched != batched or signature.has_reshape:
            shape = _shape_for_client(name, tensor, signature)
        response.outputs.append(OutputTensor(name, tensor.datatype, shape, tensor.data))
    if memories:
        response.on_release = partial(_give_back, memories)
    if named is None and (whole.correlation_id or whole.flags):
        named = (whole.correlation_id, whole.flags)
    if named is not None:
        response.parameters = _correlation_parameters(named)


def _give_back(memories: Sequence[SharedTensors]) -> None:
    for memory in memories:
        memory.give_back()


def _shape_for_client(name: str, tensor: EnsembleTensor, signature: ModelSignature) -> Sequence[int]:
    expected = signature.outputs[name]
    dims = expected.dims if expected.reshape is None else expected.reshape
    return signature.shape_for_client(expected, tensor.shape_for(dims, batched=signature.max_batch_size > 0))
