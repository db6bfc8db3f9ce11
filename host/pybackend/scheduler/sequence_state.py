"""Implicit state: tensors that the server keeps from one request of a sequence to the next.

The model gets a state as an input and leaves its successor as an output, which clients do not see.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from pybackend.errors import InferenceError, ModelLoadError
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.sequences import INITIAL_STATE_DIRECTORY, SequenceConfig, SequenceState
from pybackend_wire.dtypes import ITEMSIZE


class StateValue(NamedTuple):
    """A state's tensor: its shape, batch dimension included, and its bytes."""

    shape: tuple[int, ...]
    data: bytes


StateValues = dict[str, StateValue]
"""A sequence's states, by the names of their inputs."""


class ImplicitStates:
    """What the states of a model's sequences begin with, and how they go on.

    Args:
        config: which states there are.
        directory: of the model, where files of initial states are.

    Raises:
        ModelLoadError: such a file cannot be read, or has another size than its tensor.
    """

    def __init__(self, config: SequenceConfig, directory: Path) -> None:
        self.states: Sequence[SequenceState] = config.states
        self.output_names = tuple(state.output_name for state in config.states)
        self._model_name = config.model_name
        self._batch_dims = (1,) if config.max_batch_size else ()
        self._initial = {state.input_name: self._read(state, directory) for state in config.states}

    def initial(self) -> StateValues:
        """What a sequence begins with."""
        return dict(self._initial)

    def take(self, response: InferenceResponse, values: StateValues, visible: Collection[str]) -> None:
        """Keep the states that a response holds, and leave in it what its client is to see.

        A state that is not as configured makes an error of the response.

        Args:
            response: of the model.
            values: of the sequence; changed in place.
            visible: outputs that the client asked for.
        """
        outputs = {output.name: output for output in response.outputs}
        taken: StateValues = {}
        for state in self.states:
            output = outputs.get(state.output_name)
            if output is None:
                continue  # what the model does not change stays
            if output.datatype != state.datatype or not self._fits(state, output):
                response.error = InferenceError(
                    f"model '{self._model_name}' returned state '{state.output_name}' as {output.datatype} "
                    f"{list(output.shape)}, but its configuration says {state.datatype} "
                    f"{[*self._batch_dims, *state.dims]}"
                )
                response.release()
                return
            taken[state.input_name] = StateValue(tuple(output.shape), bytes(output.data))
        values.update(taken)
        hidden = set(self.output_names).difference(visible)
        response.outputs = [output for output in response.outputs if output.name not in hidden]

    def _fits(self, state: SequenceState, output: OutputTensor) -> bool:
        dims = (*self._batch_dims, *state.dims)
        return len(output.shape) == len(dims) and all(
            want in {-1, size} for want, size in zip(dims, output.shape, strict=True)
        )

    def _read(self, state: SequenceState, directory: Path) -> StateValue:
        shape = (*self._batch_dims, *state.initial_dims)
        itemsize = ITEMSIZE[state.datatype]
        size = prod(shape) * (itemsize or 4)  # an empty string is its length, which is 0
        if not state.initial_file:
            return StateValue(shape, bytes(size))
        home = directory / INITIAL_STATE_DIRECTORY
        path = home / state.initial_file
        what = f"cannot read the initial state of '{state.input_name}' for {self._model_name}"
        if not path.resolve().is_relative_to(home.resolve()):
            raise ModelLoadError(f"{what}: {path} leaves {home}")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ModelLoadError(f"{what}: {path}: {error.strerror}") from error
        if itemsize and len(data) != size:
            raise ModelLoadError(f"{what}: {path} has {len(data)} bytes, the tensor {size}")
        return StateValue(shape, data)
