"""A cached response. It holds copies, so that caching does not keep a stub's memory alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pybackend.inference.request import ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor

ENTRY_BYTES = 512
"""Size of an entry apart from its tensors: key, names, shapes and the objects that hold them, generously estimated."""


@dataclass(frozen=True, slots=True)
class CachedOutput:
    """One output, as clients receive it."""

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
        nbytes: its share of the cache's capacity.
    """

    outputs: Sequence[CachedOutput]
    parameters: Mapping[str, ParameterValue] | None
    nbytes: int

    def fill(self, response: InferenceResponse) -> None:
        """Copy this content into a new response."""
        response.outputs = [OutputTensor(each.name, each.datatype, each.shape, each.data) for each in self.outputs]
        response.parameters = self.parameters


def weight_bytes(response: InferenceResponse) -> int:
    """The size of a cache entry for a response."""
    return weight_bytes_of(len(output.data) for output in response.outputs)


def weight_bytes_of(sizes_bytes: Iterable[int]) -> int:
    """The size of a cache entry for a response with tensors of these sizes."""
    return ENTRY_BYTES + sum(sizes_bytes)


def copy_of(response: InferenceResponse) -> CachedResponse:
    """A copy of a response's content, independent of the response."""
    outputs = [CachedOutput(each.name, each.datatype, tuple(each.shape), bytes(each.data)) for each in response.outputs]
    return CachedResponse(outputs, response.parameters, weight_bytes(response))
