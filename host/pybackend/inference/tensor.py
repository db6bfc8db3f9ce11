"""Tensors in the host: a name, a datatype, a shape and bytes with an owner; how they are measured and copied."""

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from msgspec import Struct

from pybackend.errors import ErrorCode, InferenceError, invalid
from pybackend_wire.dtypes import ITEMSIZE

Buffer = bytes | bytearray | memoryview


class Lease(Protocol):
    """A block of shared tensor memory with exactly one owner.

    ``is_of_model`` says that it belongs to the model that the request was sent to; otherwise to a client.
    """

    is_of_model: ClassVar[bool]

    @property
    def segment(self) -> int:
        """Number of the segment that holds the block."""

    @property
    def offset(self) -> int:
        """The block's offset in its segment, in bytes."""

    @property
    def view(self) -> memoryview:
        """The block's bytes, exactly as many as requested; of one whose bytes arrive, the first of them at least."""

    def arrived(self, nbytes: int) -> int:
        """Set the total number of bytes that have arrived: these use memory from now on. :attr:`view` may be another one then.

        Returns how many of them do not lie in the model's memory.

        Raises InferenceError UNAVAILABLE if there is no memory for them.
        """

    def release(self) -> None:
        """Release the block. Further calls do nothing."""


class InputTensor(Struct, eq=False):
    """One input of a request."""

    name: str
    datatype: str  # wire name, e.g. ``FP32`` or ``BYTES``.
    shape: Sequence[int]  # dimensions as the client sent them, including the batch dimension
    # the tensor's bytes in wire form; a view of ``lease`` if there is one. None until they have arrived. Only their
    # number is known while they lie in a client's region (:func:`pybackend.inference.region.tensor_in_region`).
    data: Buffer | None = None
    lease: Lease | None = None  # the memory that holds ``data``; None while the bytes are private to the host

    def leave(self) -> None:
        """Copy the bytes to private memory of the host, and release the model's memory."""
        if self.lease is not None and self.lease.is_of_model:
            assert self.data is not None
            data = bytes(self.data)
            self.release()
            self.data = data

    def release(self) -> None:
        """Release the input's memory; ``data`` must not be read afterwards."""
        if self.lease is not None:
            self.data = None
            self.lease.release()
            self.lease = None


class OutputTensor(Struct, eq=False, array_like=True):
    """One output of a response; ``data`` is only valid until the response is released.

    It is array-like because it crosses to front ends in separate processes as it is.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    data: Buffer


LARGE_COPY_BYTES = 1024 * 1024
"""Copies of this size and more run in another thread: each would block the event loop for at least 0.1 ms."""


async def copy_bytes(target: memoryview, source: Buffer) -> None:
    """Copy ``len(target)`` bytes. Copies of at least ``LARGE_COPY_BYTES`` run in a thread; numpy releases the GIL."""
    to, of = np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8)
    if len(target) < LARGE_COPY_BYTES:
        np.copyto(to, of)
    else:
        await asyncio.get_running_loop().run_in_executor(None, np.copyto, to, of)


INT64_MAX = 2**63 - 1

MOST_DIMS = 64
"""Dimensions of a shape: numpy's maximum."""


def element_count(name: str, datatype: str, shape: Sequence[int]) -> int:
    """The number of elements that an input's shape claims.

    Raises InferenceError INVALID_ARG if the count, the byte size or a dimension does not fit in 63 bits.
    """
    count = 0 if 0 in shape else _bounded_product(shape)
    if count > INT64_MAX or any(dim > INT64_MAX for dim in shape):
        raise invalid(
            f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed "
            f"maximum size of {INT64_MAX}"
        )
    itemsize = ITEMSIZE[datatype]
    if count * itemsize > INT64_MAX:
        raise invalid(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({itemsize}) exceeds "
            f"maximum allowed size ({INT64_MAX})"
        )
    return count


def _bounded_product(dims: Sequence[int]) -> int:
    """The product, or a number beyond 63 bits. A shape with a million large dimensions costs no more than its text."""
    product = 1
    for dim in dims:
        product *= dim
        if product > INT64_MAX:
            break
    return product


def shape_text(shape: Sequence[int]) -> str:
    """A shape in the form used by messages, e.g. ``[-1,16]``."""
    return "[" + ",".join(map(str, shape)) + "]"


_T = TypeVar("_T")


def obtain(attempt: Callable[[], _T], on_shortage: Callable[[], bool]) -> _T:
    """The result of an attempt, which is repeated after each shortage that ``on_shortage`` could relieve.

    UNAVAILABLE is only raised when nobody can release memory any more.
    """
    while True:
        try:
            return attempt()
        except InferenceError as error:
            if error.code is not ErrorCode.UNAVAILABLE or not on_shortage():
                raise
