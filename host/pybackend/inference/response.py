"""A response: one element of the stream that answers a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def layout_of(response: InferenceResponse, outputs: Sequence[OutputTensor]) -> tuple[Layout, list[Buffer]]:
    """The layout of an answer, and the bytes of its outputs.

    A layout is the name and version of the model, then the name, datatype, shape and size in bytes of each output. It
    is made in one loop: to map getters of attributes over the outputs takes twice as long.
    """
    layout: list[Any] = [response.model_name, response.model_version]
    data: list[Buffer] = []
    for output in outputs:
        its_data = output.data
        data.append(its_data)
        layout += (output.name, output.datatype, tuple(output.shape), len(its_data))
    return tuple(layout), data


def outputs_in(layout: Layout) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Name, datatype, shape and size in bytes of each output."""
    return [*zip(layout[2::4], layout[3::4], layout[4::4], layout[5::4], strict=True)]


OnResponse = Callable[[InferenceResponse], None]
"""Called on the event loop, never from inside ``submit``, once per response; the last one has ``final`` set."""
