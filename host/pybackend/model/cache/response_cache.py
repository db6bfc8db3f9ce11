"""The response cache: keys, entries, its interface for models, and the cache in the server's memory.

Two requests have the same key if everything that a model can see, and may depend on, is equal. An entry holds copies,
so that caching does not keep a stub's memory alive.
"""

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated

from msgspec import Meta, Struct

from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import INT64_MAX, MOST_DIMS, OutputTensor

ENTRY_BYTES = 512
"""Size of an entry apart from its tensors: key, names, shapes and the objects that hold them, generously estimated."""


_MOST_OUTPUTS = 10_000
_MOST_PARAMETERS = 65_536


class CachedOutput(Struct, array_like=True, frozen=True):
    """One output, as clients receive it."""

    name: str
    datatype: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=INT64_MAX)], ...], Meta(max_length=MOST_DIMS)]
    data: bytes


class CachedResponse(Struct, array_like=True, frozen=True):
    """A successful response: its outputs in the model's order, and its parameters.

    An entry that other programs may have written has the bounds of these types once it is decoded.
    """

    outputs: Annotated[Sequence[CachedOutput], Meta(max_length=_MOST_OUTPUTS)]
    parameters: Annotated[Mapping[str, ParameterValue], Meta(max_length=_MOST_PARAMETERS)] | None

    @property
    def nbytes(self) -> int:
        """Its share of the cache's capacity."""
        return weight_bytes(self)

    def fill(self, response: InferenceResponse) -> None:
        """Copy this content into a new response."""
        response.outputs = [OutputTensor(each.name, each.datatype, each.shape, each.data) for each in self.outputs]
        response.parameters = self.parameters


def weight_bytes(response: InferenceResponse | CachedResponse) -> int:
    """The size of a cache entry for a response."""
    return ENTRY_BYTES + sum([len(output.data) for output in response.outputs])


def copy_of(response: InferenceResponse) -> CachedResponse:
    """A copy of a response's content, independent of the response."""
    outputs = [CachedOutput(each.name, each.datatype, tuple(each.shape), bytes(each.data)) for each in response.outputs]
    return CachedResponse(outputs, response.parameters)


_KEY_BYTES = 24


def cache_key(identity: bytes, request: InferenceRequest) -> bytes:
    """The key of a request whose inputs have arrived, with shapes as sent by the client.

    The order of inputs and of requested outputs does not matter, nor do id, priority and timeout.
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


@dataclass(slots=True)
class CacheFigures:
    """Statistics of a cache in this process; times are cumulative nanoseconds."""

    entries: int = 0
    used_bytes: int = 0
    size_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


class ResponseCache(ABC):
    """Responses by key, shared by all models."""

    is_here: bool = True
    """True if lookups return immediately, False if they query another process."""

    stable_keys: bool = False
    """True if entries are shared with other servers and survive a restart."""

    @property
    def figures(self) -> CacheFigures | None:
        """Statistics for the metrics page; None for a cache outside this process."""
        return None

    @abstractmethod
    def get(self, key: bytes) -> CachedResponse | None:
        """The response stored under this key, None if there is none. Only for caches in this process."""

    async def look_up(self, key: bytes) -> CachedResponse | None:
        """Like :meth:`get`, for every cache."""
        return self.get(key)

    @abstractmethod
    def takes(self, nbytes: int) -> bool:
        """True if an entry of this size would be stored."""

    @abstractmethod
    def put(self, key: bytes, response: CachedResponse) -> None:
        """Store a response, unless it is too large; others may be evicted."""

    async def open(self) -> None:  # noqa: B027  a cache in this process needs no preparation
        """Prepare the cache."""

    async def close(self) -> None:  # noqa: B027  likewise
        """Shut down. No lookups may follow."""


class LocalCache(ResponseCache):
    """A cache of limited size in the server's memory. The least recently used entries are evicted first."""

    def __init__(self, size_bytes: int) -> None:
        self._figures = CacheFigures(size_bytes=size_bytes)
        self._entries: OrderedDict[bytes, CachedResponse] = OrderedDict()

    @property
    def figures(self) -> CacheFigures:
        self._figures.entries = len(self._entries)
        return self._figures

    def get(self, key: bytes) -> CachedResponse | None:
        began_ns = time.monotonic_ns()
        figures = self._figures
        found = self._entries.get(key)
        if found is None:
            figures.misses += 1
        else:
            self._entries.move_to_end(key)
            figures.hits += 1
        figures.lookup_ns += time.monotonic_ns() - began_ns
        return found

    def takes(self, nbytes: int) -> bool:
        return nbytes <= self._figures.size_bytes

    def put(self, key: bytes, response: CachedResponse) -> None:
        began_ns = time.monotonic_ns()
        figures, entries, nbytes = self._figures, self._entries, response.nbytes
        if not self.takes(nbytes):
            return
        before = entries.pop(key, None)
        if before is not None:
            figures.used_bytes -= before.nbytes
        while figures.used_bytes + nbytes > figures.size_bytes:
            _, oldest = entries.popitem(last=False)
            figures.used_bytes -= oldest.nbytes
            figures.evictions += 1
        entries[key] = response
        figures.used_bytes += nbytes
        figures.insertion_ns += time.monotonic_ns() - began_ns
