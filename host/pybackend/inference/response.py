"""A response: one element of the stream that answers a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct, field

from pybackend.errors import InferenceError
from pybackend.inference.request import ParameterValue
from pybackend.inference.tensor import Buffer, OutputTensor


class InferenceResponse(Struct, eq=False):
    """One response. Its outputs may lie in shared memory: call :meth:`release` once they have been sent or copied."""

    model_name: str
    model_version: str  # decimal version that answered
    id: str = ""
    outputs: list[OutputTensor] = field(default_factory=list)  # in the order in which the model produced them
    parameters: Mapping[str, ParameterValue] | None = None
    on_release: Callable[[], None] | None = None  # called by :meth:`release`; None if the outputs' memory is private
    error: InferenceError | None = None  # the failure, None for a result
    final: bool = True  # True on the last element of the stream
    empty: bool = False  # True if this only ends the stream: the model sent its final flag without a response
    # the responses of the following steps that have run, see ``InferenceRequest.following``; released one by one
    followed: Sequence[InferenceResponse] = ()

    def release(self) -> None:
        """Release the outputs' memory. Further calls do nothing."""
        if self.on_release is not None:
            on_release, self.on_release = self.on_release, None
            self.outputs = []
            on_release()


Layout = tuple[Any, ...]
"""What answers share whose tensors alone differ: see :func:`layout_of`."""

_kind, _shape = attrgetter("name", "datatype"), attrgetter("shape")


def layout_of(response: InferenceResponse, outputs: Sequence[OutputTensor], data: Sequence[Buffer]) -> Layout:
    """Name and version of the model; name and datatype of each output, then the shapes of all, then their sizes in bytes."""
    return (
        response.model_name,
        response.model_version,
        *map(_kind, outputs),
        *map(tuple, map(_shape, outputs)),
        *map(len, data),
    )


def outputs_in(layout: Layout) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Name, datatype, shape and size in bytes of each output."""
    count = (len(layout) - 2) // 3
    kinds, shapes, sizes = layout[2 : 2 + count], layout[2 + count : 2 + 2 * count], layout[2 + 2 * count :]
    return [(*kind, shape, size) for kind, shape, size in zip(kinds, shapes, sizes, strict=True)]


OnResponse = Callable[[InferenceResponse], None]
"""Called on the event loop, never from inside ``submit``, once per response; the last one has ``final`` set."""
