"""Adds the sequence batcher's inputs to requests, and makes fillers for empty slots."""

from __future__ import annotations

import struct
from math import prod

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import NoHolder, PendingRequest
from pybackend.inference.request import InferenceRequest, RequestFlags
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.modelconfig.sequences import ControlKind, SequenceConfig, SequenceControl
from pybackend.scheduler.scheduler import SchedulerOwner
from pybackend.scheduler.sequence_slots import SequenceRequest
from pybackend.scheduler.sequence_state import ImplicitStates, StateValues
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import ITEMSIZE
from pybackend_wire.messages import INLINE_BYTES

_FORMATS = {"INT32": "<i", "FP32": "<f", "BOOL": "<?"}
_FLAGS = {ControlKind.START: RequestFlags.SEQUENCE_START, ControlKind.END: RequestFlags.SEQUENCE_END}


class ControlTensors:
    """Makes the control inputs of requests."""

    def __init__(self, config: SequenceConfig) -> None:
        self._model_name = config.model_name
        self._shape = (1, 1) if config.max_batch_size else (1,)
        self._values: list[tuple[SequenceControl, bytes, bytes]] = []
        self._correlation: SequenceControl | None = None
        for control in config.controls:
            if control.kind is ControlKind.CORRELATION_ID:
                self._correlation = control
            else:
                low, high = (_encoded(control.datatype, value) for value in control.false_true)
                self._values.append((control, low, high))

    @property
    def wants_text_ids(self) -> bool:
        """True if the model receives correlation ids as strings."""
        return self._correlation is not None and self._correlation.datatype == "BYTES"

    def check_id(self, request: InferenceRequest) -> None:
        """Check a request's correlation id against the datatype that the model expects.

        Raises:
            InferenceError: INVALID_ARG, a string instead of a number or a number instead of a string.
        """
        control = self._correlation
        is_text = isinstance(request.correlation_id, str)
        if control is None or is_text == (control.datatype == "BYTES"):
            return
        raise InferenceError(
            f"{request.prefix}sequence batching control '{control.name}' data-type is "
            f"'{'BYTES' if is_text else 'UINT64'}', but model '{self._model_name}' expects '{control.datatype}'",
            ErrorCode.INVALID_ARG,
        )

    def inputs(self, request: InferenceRequest, *, ready: bool = True) -> list[InputTensor]:
        """The control inputs of a request, each of shape ``[1]``, or ``[1, 1]`` with a batch dimension.

        Args:
            request: supplies the flags and the correlation id.
            ready: False for a filler in an empty slot.
        """
        tensors = []
        for control, low, high in self._values:
            true = ready if control.kind is ControlKind.READY else bool(request.flags & _FLAGS[control.kind])
            tensors.append(InputTensor(control.name, control.datatype, self._shape, high if true else low))
        control_of_id = self._correlation
        if control_of_id is not None:
            data = _encoded_id(control_of_id.datatype, request.correlation_id)
            tensors.append(InputTensor(control_of_id.name, control_of_id.datatype, self._shape, data))
        return tensors


def _encoded(datatype: str, value: float) -> bytes:
    return struct.pack(_FORMATS[datatype], value)


def _encoded_id(datatype: str, correlation_id: int | str) -> bytes:
    if datatype == "BYTES":
        return encode_elements([correlation_id or ""])
    itemsize = ITEMSIZE[datatype]
    number = correlation_id if isinstance(correlation_id, int) else 0
    return (number & ((1 << 8 * itemsize) - 1)).to_bytes(itemsize, "little")  # 32-bit numbers lose the upper half


_EMPTY_STRING_BYTES = 4


class SequenceInputs:
    """Adds control tensors and states to requests.

    Args:
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
