"""Implicit state: tensors that the server stores between the requests of a sequence.

The model receives a state as an input and returns the next one as an output, which clients do not see.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from pybackend.author_files.reading import read_beneath
from pybackend.errors import InferenceError, ModelLoadError
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.sequences import INITIAL_STATE_DIRECTORY, SequenceConfig, SequenceState
from pybackend_wire.dtypes import ITEMSIZE


class StateValue(NamedTuple):
    """A state's tensor: its shape, including the batch dimension, and its bytes."""

    shape: tuple[int, ...]
    data: bytes


MOST_STATE_BYTES = 256 * 1024 * 1024
"""Limit on the total size of a model's initial states."""

StateValues = dict[str, StateValue]
"""A sequence's states, by input name."""


class ImplicitStates:
    """The initial states of a model's sequences, and their updates.

    Args:
        directory: the model directory, which contains the files of initial states.

    Raises:
        ModelLoadError: such a file cannot be read, or its size differs from its tensor's.
    """

    def __init__(self, config: SequenceConfig, directory: Path) -> None:
        self.states: Sequence[SequenceState] = config.states
        self.output_names = tuple(state.output_name for state in config.states)
        self._model_name = config.model_name
        self._batch_dims = (1,) if config.max_batch_size else ()
        self._initial: StateValues = {}
        room_bytes = MOST_STATE_BYTES
        for state in config.states:
            value = self._read(state, directory, room_bytes)
            self._initial[state.input_name] = value
            room_bytes -= len(value.data)

    def initial(self) -> StateValues:
        """The initial states of a sequence."""
        return dict(self._initial)

    def keep(self, response: InferenceResponse, values: StateValues, visible: Collection[str]) -> None:
        """Store the states in a response, and remove outputs that the client should not see.

        A state that does not match the configuration turns the response into an error.

        Args:
            response: of the model.
            values: of the sequence; changed in place.
            visible: outputs that the client requested.
        """
        outputs = {output.name: output for output in response.outputs}
        kept: StateValues = {}
        for state in self.states:
            output = outputs.get(state.output_name)
            if output is None:
                continue  # states that the model does not return stay unchanged
            if output.datatype != state.datatype or not self._fits(state, output):
                response.error = InferenceError(
                    f"model '{self._model_name}' returned state '{state.output_name}' as {output.datatype} "
                    f"{list(output.shape)}, but its configuration says {state.datatype} "
                    f"{[*self._batch_dims, *state.dims]}"
                )
                response.release()
                return
            kept[state.input_name] = StateValue(tuple(output.shape), bytes(output.data))
        values.update(kept)
        hidden = set(self.output_names).difference(visible)
        response.outputs = [output for output in response.outputs if output.name not in hidden]

    def _fits(self, state: SequenceState, output: OutputTensor) -> bool:
        dims = (*self._batch_dims, *state.dims)
        return len(output.shape) == len(dims) and all(
            want in {-1, size} for want, size in zip(dims, output.shape, strict=True)
        )

    def _read(self, state: SequenceState, directory: Path, room_bytes: int) -> StateValue:
        shape = (*self._batch_dims, *state.initial_dims)
        itemsize = ITEMSIZE[state.datatype]
        size = prod(shape) * (itemsize or 4)  # an empty string is its length, which is 0
        if size > room_bytes:
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
        most_bytes = size if itemsize else room_bytes
        try:
            data = read_beneath(directory, f"{INITIAL_STATE_DIRECTORY}/{inside}", most_bytes)
        except OSError as error:
            raise ModelLoadError(f"{what}: {path}: {error.strerror}") from error
        if itemsize and len(data) != size:
            raise ModelLoadError(f"{what}: {path} has {len(data)} bytes, the tensor {size}")
        return StateValue(shape, data)
