"""Tensors whose data was cut out of a large JSON document, for conversion after the rest was parsed."""

from __future__ import annotations

from typing import NamedTuple

from pybackend.inference.tensor import InputTensor
from pybackend.protocol.json_outline import Outline


class LeftOutTensor(NamedTuple):
    """A tensor without its data.

    Attributes:
        tensor: the tensor.
        number: index of its data among all arrays that were cut out.
        element_count: according to its shape.
    """

    tensor: InputTensor
    number: int
    element_count: int


class LeftOut:
    """All tensors whose data was cut out."""

    def __init__(self, outline: Outline) -> None:
        self._token = outline.token
        self.offset = outline.offset
        self.tensors: list[LeftOutTensor] = []

    def add(self, tensor: InputTensor, stands_in: list[int], count: int) -> bool:
        """Note a tensor; False if this is not what stands in for data."""
        if len(stands_in) != 2 or stands_in[0] != self._token:
            return False
        self.tensors.append(LeftOutTensor(tensor, stands_in[1], count))
        return True
