"""Tensors as the host sees them: a name, a datatype, a shape and bytes that somebody owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Lease(Protocol):
    """A block of shared tensor memory with exactly one owner."""

    @property
    def segment(self) -> int:
        """Number of the segment the block lies in."""

    @property
    def offset(self) -> int:
        """Where the block begins in its segment, in bytes."""

    @property
    def view(self) -> memoryview:
        """The block's bytes, as many as were asked for."""

    def release(self) -> None:
        """Give the block back. Every further call does nothing."""


class InputTensor:
    """One input of a request.

    Attributes:
        name: the input's name.
        datatype: wire name, e.g. ``FP32`` or ``BYTES``.
        shape: dimensions as the client gave them, batch dimension included.
        data: the tensor's bytes in wire form; a view of ``lease`` where there is one. None until they arrived.
        lease: the input memory that holds ``data``; None while the bytes are private to the host.
    """

    __slots__ = ("data", "datatype", "lease", "name", "shape")

    def __init__(
        self, name: str, datatype: str, shape: Sequence[int], data: Buffer | None = None, lease: Lease | None = None
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data
        self.lease = lease

    def leave(self) -> None:
        """Copy the bytes to where they belong to no model, and give the memory back."""
        if self.lease is not None:
            assert self.data is not None
            data = bytes(self.data)
            self.release()
            self.data = data

    def release(self) -> None:
        """Give the input's memory back; ``data`` must not be read any more."""
        if self.lease is not None:
            self.data = None
            self.lease.release()
            self.lease = None


class OutputTensor:
    """One output of a response; ``data`` is only valid until the response is released."""

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: Sequence[int], data: Buffer) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data
