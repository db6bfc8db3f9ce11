"""What a cache keeps of a response: copies of its own, so that no stub's memory lives longer for its sake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pybackend.inference.request import ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor

ENTRY_BYTES = 512
"""What an entry weighs beside its tensors: key, names, shapes and the objects that hold them, generously."""


@dataclass(frozen=True, slots=True)
class CachedOutput:
    """One output, as clients get it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A successful response.

    Attributes:
        outputs: in the model's order.
        parameters: response parameters, None if there are none.
        nbytes: what it takes of a cache's room.
    """

    outputs: Sequence[CachedOutput]
    parameters: Mapping[str, ParameterValue] | None
    nbytes: int

    def fill(self, response: InferenceResponse) -> None:
        """Give a new response this content."""
        outputs = [OutputTensor(each.name, each.datatype, each.shape, each.data) for each in self.outputs]
        response.set_result(outputs, self.parameters, None)


def weight_bytes(response: InferenceResponse) -> int:
    """What keeping a response would take."""
    return weight_bytes_of(len(output.data) for output in response.outputs)


def weight_bytes_of(sizes_bytes: Iterable[int]) -> int:
    """The same, of a response with tensors of these sizes."""
    return ENTRY_BYTES + sum(sizes_bytes)


def copy_of(response: InferenceResponse) -> CachedResponse:
    """A response's content, copied: it may be released afterwards."""
    outputs = [CachedOutput(each.name, each.datatype, tuple(each.shape), bytes(each.data)) for each in response.outputs]
    return CachedResponse(outputs, response.parameters, weight_bytes(response))
