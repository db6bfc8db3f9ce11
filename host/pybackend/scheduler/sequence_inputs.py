"""The inputs that the server adds to requests of a sequence: controls and states; and fillers for empty slots."""

import os
import struct
from collections.abc import Collection, Sequence
from math import prod
from pathlib import Path

from pybackend.author_files import read_beneath
from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest, RequestHolder
from pybackend.inference.request import InferenceRequest, RequestFlags
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.modelconfig.sequences import (
    INITIAL_STATE_DIRECTORY,
    ControlKind,
    SequenceConfig,
    SequenceControl,
    SequenceState,
)
from pybackend.scheduler.scheduler import SchedulerOwner
from pybackend.scheduler.sequences import SequenceRequest, StateValue, StateValues
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
                low, high = (struct.pack(_FORMATS[control.datatype], value) for value in control.false_true)
                self._values.append((control, low, high))

    @property
    def wants_text_ids(self) -> bool:
        """True if the model receives correlation ids as strings."""
        return self._correlation is not None and self._correlation.datatype == "BYTES"

    def check_id(self, request: InferenceRequest) -> None:
        """Check a request's correlation id against the datatype that the model expects."""
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

        ``ready`` is False for a filler in an empty slot.
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


def _encoded_id(datatype: str, correlation_id: int | str) -> bytes:
    if datatype == "BYTES":
        return encode_elements([correlation_id or ""])
    itemsize = ITEMSIZE[datatype]
    number = correlation_id if isinstance(correlation_id, int) else 0
    return (number & ((1 << 8 * itemsize) - 1)).to_bytes(itemsize, "little")  # 32-bit numbers lose the upper half


MOST_STATE_BYTES = 256 * 1024 * 1024
"""Limit on the total size of a model's initial states."""


class ImplicitStates:
    """Tensors that the server stores between the requests of a sequence: the initial ones, and their updates.

    The model receives a state as an input and returns the next one as an output, which clients do not see. The files of
    initial states are in the model directory.
    """

    def __init__(self, config: SequenceConfig, directory: Path) -> None:
        self.states: Sequence[SequenceState] = config.states
        self.output_names = tuple(state.output_name for state in config.states)
        self._model_name = config.model_name
        self._batch_dims = (1,) if config.max_batch_size else ()
        self._initial: StateValues = {}
        left_bytes = MOST_STATE_BYTES
        for state in config.states:
            value = self._read(state, directory, left_bytes)
            self._initial[state.input_name] = value
            left_bytes -= len(value.data)

    def initial(self) -> StateValues:
        return dict(self._initial)

    def keep(self, response: InferenceResponse, values: StateValues, visible: Collection[str]) -> None:
        """Store a response's states in ``values``, and remove outputs that the client should not see.

        A state that does not match the configuration turns the response into an error.
        """
        outputs = {output.name: output for output in reversed(response.outputs)}  # the first of a name counts
        kept: StateValues = {}
        for state in self.states:
            output = outputs.get(state.output_name)
            if output is None:
                continue  # states that the model does not return stay unchanged
            dims = (*self._batch_dims, *state.dims)
            fits = len(output.shape) == len(dims) and all(
                want in {-1, size} for want, size in zip(dims, output.shape, strict=True)
            )
            if output.datatype != state.datatype or not fits:
                response.error = InferenceError(
                    f"model '{self._model_name}' returned state '{state.output_name}' as {output.datatype} "
                    f"{list(output.shape)}, but its configuration says {state.datatype} "
                    f"{list(dims)}"
                )
                response.release()
                return
            kept[state.input_name] = StateValue(tuple(output.shape), bytes(output.data))
        values.update(kept)
        hidden = set(self.output_names).difference(visible)
        response.outputs = [output for output in response.outputs if output.name not in hidden]

    def _read(self, state: SequenceState, directory: Path, left_bytes: int) -> StateValue:
        shape = (*self._batch_dims, *state.initial_dims)
        itemsize = ITEMSIZE[state.datatype]
        size = prod(shape) * (itemsize or 4)  # an empty string is its length, which is 0
        if size > left_bytes:
            raise ModelLoadError(
                f"state '{state.input_name}' of {self._model_name} begins with {size} bytes: all states together have "
                f"more than the {MOST_STATE_BYTES} that they may have"
            )
        if not state.initial_file:
            return StateValue(shape, bytes(size))
        home = directory / INITIAL_STATE_DIRECTORY
        path = home / state.initial_file
        inside = os.path.normpath(state.initial_file)
        what = f"cannot read the initial state of '{state.input_name}' for {self._model_name}"
        if os.path.isabs(inside) or inside.split("/")[0] == "..":
            raise ModelLoadError(f"{what}: {path} leaves {home}")
        most_bytes = size if itemsize else left_bytes
        try:
            data = read_beneath(directory, f"{INITIAL_STATE_DIRECTORY}/{inside}", most_bytes)
        except OSError as error:
            raise ModelLoadError(f"{what}: {path}: {error.strerror}") from error
        if itemsize and len(data) != size:
            raise ModelLoadError(f"{what}: {path} has {len(data)} bytes, the tensor {size}")
        return StateValue(shape, data)


_EMPTY_STRING_BYTES = 4


class SequenceInputs:
    """Adds control tensors and states to requests; their owner provides memory for large states."""

    def __init__(self, controls: ControlTensors, states: ImplicitStates, owner: SchedulerOwner) -> None:
        self._controls = controls
        self._states = states
        self.owner = owner

    def add(self, item: SequenceRequest) -> None:
        """Add the control inputs of a request and the current states of its sequence.

        It must be the sequence's next.
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
        """A request that fills an empty slot: inputs of the same size as another request's, all zero; no answer."""
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
        filler = PendingRequest(request, InferenceResponse.release, RequestHolder())
        filler.is_filler = True
        return filler

    def _add_states(self, request: InferenceRequest, values: StateValues) -> None:
        for state in self._states.states:
            shape, data = values[state.input_name]
            request.inputs.append(self._tensor(state.input_name, state.datatype, shape, data))

    def _tensor(self, name: str, datatype: str, shape: tuple[int, ...], data: Buffer) -> InputTensor:
        tensor = InputTensor(name, datatype, shape, data)
        if len(data) > INLINE_BYTES:
            tensor.lease = self.owner.lease(len(data))
            tensor.data = tensor.lease.view
            tensor.data[:] = data
        return tensor
