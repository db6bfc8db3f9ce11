"""Keys and entries of the response cache.

Two requests have the same key if everything that a model can see, and may depend on, is equal. An entry holds copies, so that
caching does not keep a stub's memory alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from pybackend.inference.request import InferenceRequest, ParameterValue
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


_KEY_BYTES = 24


def cache_key(identity: bytes, request: InferenceRequest) -> bytes:
    """The key of a request whose inputs have arrived.

    The order of inputs and of requested outputs does not matter, nor do id, priority and timeout.

    Args:
        request: with shapes as sent by the client.
    """
    inputs = sorted(request.inputs, key=lambda tensor: tensor.name)
    sizes = [len(tensor.data) for tensor in inputs]  # type: ignore[arg-type]  # bytes have arrived
    what = (
        [(each.name, each.datatype, tuple(each.shape), size) for each, size in zip(inputs, sizes, strict=True)],
        sorted(request.requested_outputs),
        # repr distinguishes 1 from 1.0 and from True.
        sorted(request.parameters.items()) if request.parameters else None,
        request.correlation_id,
        int(request.flags),
    )
    digest = blake2b(identity, digest_size=_KEY_BYTES)
    text = repr(what).encode("utf-8", "surrogatepass")
    digest.update(len(text).to_bytes(8, "little"))
    digest.update(text)
    for tensor in inputs:
        digest.update(tensor.data)  # type: ignore[arg-type]  # likewise
    return digest.digest()
