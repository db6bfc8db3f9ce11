"""Tensors in shared memory of clients: a request names a part of a registered region instead of sending bytes.

The bytes stay where they are. Codecs find the parts that a request names, and the instance that executes the request
tells its stub where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Self

from msgspec import Struct

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.tensor import Buffer, InputTensor, Lease


class Region:
    """A registered region, of which only the name may be known: the object is open in the process that serves it.

    It lives as long as it is registered, or a request refers to it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, offset: int, data: Buffer) -> None:
        """Copy bytes into the shared memory object, where that is open.

        Raises InferenceError if the object has become too small, or the system has no memory for the bytes.
        """
        raise NotImplementedError


class RegionPart(Struct, eq=False):
    """A part of a region. Its offset counts from the start of the shared memory object."""

    region: Region
    offset: int
    nbytes: int

    @classmethod
    def of(cls, part: RegionPart) -> Self:
        """The same part, for one request to one model."""
        return cls(part.region, part.offset, part.nbytes)


class RegionInput(RegionPart, eq=False):
    """The source of an input's bytes. It stands for both the bytes, which have a length only, and their lease.

    The stub copies the bytes into ``block``, if the model needs input memory for them. If ``is_view``, the model gets a
    view of the region itself.
    """

    is_of_model: ClassVar[bool] = False
    block: Lease | None = None
    is_view: bool = False

    def __len__(self) -> int:
        return self.nbytes

    def release(self) -> None:
        if self.block is not None:
            block, self.block = self.block, None
            block.release()


def tensor_in_region(name: str, datatype: str, shape: Sequence[int], part: RegionPart) -> InputTensor:
    """An input whose bytes lie in a region; the host never reads them, but ``len`` of its data is known."""
    tensor = InputTensor(name, datatype, shape)
    source: Any = RegionInput.of(part)
    tensor.data = tensor.lease = source
    return tensor


def source_of(tensor: InputTensor) -> RegionInput | None:
    """The source of an input in a region; None for any other input."""
    lease: object = tensor.lease
    return lease if type(lease) is RegionInput else None


class RegionOutput(RegionPart, eq=False):
    """The destination of an output. The stub writes there (``by_stub``), or the host copies what has arrived."""

    by_stub: bool = False


RegionOutputs = dict[str, RegionOutput]
"""The destinations of a request's outputs, by their names."""

IN_REGION: Final = memoryview(b"")
"""The data of an output that has been written to its region. It is recognised by identity."""


FindRegion = Callable[[str, int, int], RegionPart]
"""Finds a part of a registered region by its name, its offset from the start of the region, and its bytes.

Raises InferenceError if there is no such part.
"""


def no_region(name: str, _offset: int, _nbytes: int) -> RegionPart:
    """Find nothing: for servers without client shared memory."""
    raise unknown_region_error(name)


def unknown_region_error(name: str) -> InferenceError:
    """The error for a shared memory region that no client has registered."""
    return InferenceError(f"Unable to find shared memory region: '{name}'", ErrorCode.NOT_FOUND)
