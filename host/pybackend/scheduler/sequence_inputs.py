"""Adds the sequence batcher's inputs to requests, and makes fillers for empty slots."""

from __future__ import annotations

from math import prod

from pybackend.errors import InferenceError
from pybackend.inference.pending import NoHolder, PendingRequest
from pybackend.inference.request import InferenceRequest, RequestFlags
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.scheduler.scheduler import SchedulerOwner
from pybackend.scheduler.sequence_controls import ControlTensors
from pybackend.scheduler.sequence_slots import SequenceRequest
from pybackend.scheduler.sequence_state import ImplicitStates, StateValues
from pybackend_wire.dtypes import ITEMSIZE
from pybackend_wire.messages import INLINE_BYTES

_EMPTY_STRING_BYTES = 4


class SequenceInputs:
    """Adds control tensors and states to requests.

    Args:
        controls: of the model.
        states: of the model.
        owner: the model, which provides input memory for large states.
    """

    def __init__(self, controls: ControlTensors, states: ImplicitStates, owner: SchedulerOwner) -> None:
        self._controls = controls
        self._states = states
        self._owner = owner

    def add(self, item: SequenceRequest) -> None:
        """Add the control inputs of a request and the current states of its sequence; it must be the sequence's next.

        Raises:
            InferenceError: UNAVAILABLE, there is no memory for a state.
        """
        item.strip()
        request, sequence = item.pending.request, item.sequence
        request.inputs += self._controls.inputs(request)
        if not self._states.states:
            return
        if request.flags & RequestFlags.SEQUENCE_START or not sequence.states:
            sequence.states = self._states.initial()
        try:
            self._add_states(request, sequence.states)
        except InferenceError:
            item.strip()
            raise
        if item.requested:
            request.requested_outputs = tuple(dict.fromkeys((*item.requested, *self._states.output_names)))

    def filler(self, like: SequenceRequest) -> PendingRequest:
        """A request that fills an empty slot; its responses are dropped.

        Args:
            like: another request of the batch; the filler's inputs have the same size and are zero.

        Raises:
            InferenceError: UNAVAILABLE, there is no memory for it.
        """
        model = like.pending.request
        request = InferenceRequest(model.model_name, model.model_version, requested_outputs=model.requested_outputs)
        try:
            for tensor in model.inputs[: like.input_count]:
                size = prod(tensor.shape) * (ITEMSIZE[tensor.datatype] or _EMPTY_STRING_BYTES)
                request.inputs.append(self._tensor(tensor.name, tensor.datatype, tuple(tensor.shape), bytes(size)))
            request.inputs += self._controls.inputs(request, ready=False)
            self._add_states(request, self._states.initial())
        except InferenceError:
            request.release()
            raise
        filler = PendingRequest(request, InferenceResponse.release, NoHolder())
        filler.is_filler = True
        return filler

    def _add_states(self, request: InferenceRequest, values: StateValues) -> None:
        for state in self._states.states:
            shape, data = values[state.input_name]
            request.inputs.append(self._tensor(state.input_name, state.datatype, shape, data))

    def _tensor(self, name: str, datatype: str, shape: tuple[int, ...], data: Buffer) -> InputTensor:
        tensor = InputTensor(name, datatype, shape, data)
        if len(data) > INLINE_BYTES:
            tensor.lease = self._owner.lease(len(data), name)
            tensor.data = tensor.lease.view
            tensor.data[:] = data
        return tensor
