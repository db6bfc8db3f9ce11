"""Tensors in the host: a name, a datatype, a shape and bytes with an owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from msgspec import Struct

Buffer = bytes | bytearray | memoryview


class Lease(Protocol):
    """A block of shared tensor memory with exactly one owner.

    Attributes:
        is_of_model: the block belongs to the model that the request was sent to; otherwise to a client.
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
        """The block's bytes, exactly as many as requested."""

    def arrived(self, nbytes: int) -> None:
        """Set the total number of bytes that have arrived: these use memory from now on.

        Raises:
            InferenceError: UNAVAILABLE, there is no memory for them.
        """

    def release(self) -> None:
        """Release the block. Further calls do nothing."""


class InputTensor(Struct, eq=False):
    """One input of a request.

    Attributes:
        name: the input's name.
        datatype: wire name, e.g. ``FP32`` or ``BYTES``.
        shape: dimensions as the client sent them, including the batch dimension.
        data: the tensor's bytes in wire form; a view of ``lease`` if there is one. None until they have arrived. Only their
            number is known while they lie in a client's region (:func:`pybackend.inference.region.tensor_in_region`).
        lease: the memory that holds ``data``; None while the bytes are private to the host.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    data: Buffer | None = None
    lease: Lease | None = None

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


class OutputTensor(Struct, eq=False):
    """One output of a response; ``data`` is only valid until the response is released."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: Buffer
