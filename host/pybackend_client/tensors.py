"""Models and answers as Python sees them: specifications of tensors, and arrays by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pybackend.errors import PybackendError
from pybackend.spelling import closest
from pybackend_client.errors import WrongInputError
from pybackend_client.values import ModelTensor, Tensor, tensor_of


@dataclass(frozen=True)
class Metadata:
    """The inputs and outputs of a model, with the batch dimension where it has one."""

    name: str
    versions: tuple[str, ...]
    inputs: Mapping[str, ModelTensor]
    outputs: Mapping[str, ModelTensor]


class Answer(Mapping[str, np.ndarray]):
    """The outputs of one response, by name: BYTES as ``bytes`` objects, BF16 as float32."""

    def __init__(
        self,
        outputs: Mapping[str, np.ndarray],
        model_version: str = "",
        request_id: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._outputs = outputs
        self.model_version = model_version
        self.request_id = request_id
        self.parameters = parameters or {}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {array.dtype} {list(array.shape)}" for name, array in self._outputs.items())
        return f"Answer({shapes})"


@dataclass(frozen=True)
class Ask:
    """The parts of a request beside its tensors."""

    model: str
    version: str = ""  # empty lets the server choose
    outputs: Sequence[str] = ()  # names; empty for all
    parameters: Mapping[str, Any] = field(default_factory=dict)
    request_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # of this request alone


def tensors_of(values: Mapping[str, Any], metadata: Metadata) -> list[Tensor]:
    """The inputs of a request; raises WrongInputError if they do not fit the model."""
    tensors = []
    for name, value in values.items():
        wanted = metadata.inputs.get(name)
        if wanted is None:
            near = closest(name, metadata.inputs)
            listed = ", ".join(f"{each.name} ({each})" for each in metadata.inputs.values()) or "none"
            advice = f": did you mean '{near}'?" if near else "."
            raise WrongInputError(f"model '{metadata.name}' has no input '{name}'{advice} Its inputs: {listed}")
        try:
            tensors.append(tensor_of(value, wanted))
        except PybackendError as error:
            raise WrongInputError(str(error)) from None
    return tensors
