"""Memory for large outputs, taken before they are computed, so that a library writes them where they are sent from."""

from math import prod
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from pybackend_sdk.backend import Signature
from pybackend_sdk.datatypes import TRITON_STRING_TO_NUMPY, triton_string_to_numpy
from pybackend_sdk.tensor import Tensor

LARGE_BYTES = 256 * 1024
"""From this size on, handing memory to a library costs less than copying an output."""


def sent_copy(name: str, array: "np.ndarray") -> "Union[np.ndarray, Tensor]":
    """A copy of an output whose memory the next run overwrites; a large one lies where it is sent from."""
    if array.nbytes < LARGE_BYTES:
        return array.copy()
    output = Tensor.empty(name, array.shape, array.dtype)
    np.copyto(output.as_numpy(), array)
    return output


class SizedOutputs:
    """The outputs of a model whose sizes follow from the batch alone.

    If ``most_rows``, which is ``max_batch_size``, is not 0, the first dimension of every tensor is the batch's.
    """

    def __init__(self, signature: Signature, most_rows: int) -> None:
        batches = most_rows > 0
        found = {tensor.name: _Sized.of(tensor.data_type, tensor.shape, batches) for tensor in signature.outputs}
        self._sized = {name: sized for name, sized in found.items() if sized is not None}
        self._batches = batches
        self.can_be_large = any(sized.row_bytes * max(1, most_rows) >= LARGE_BYTES for sized in self._sized.values())

    def rows(self, inputs: "Mapping[str, np.ndarray]") -> int:
        """The batch's size, 1 without batching."""
        return len(next(iter(inputs.values()))) if self._batches and inputs else 1

    def large(self, rows: int, names: Sequence[str]) -> "Dict[str, Tensor]":
        """Output memory for each large output among ``names``, by name; its contents are arbitrary."""
        found = {}
        for name in names:
            sized = self._sized.get(name)
            if sized is not None and sized.row_bytes * rows >= LARGE_BYTES:
                found[name] = Tensor.empty(name, self._shape(sized, rows), sized.dtype)
        return found

    def arrays(self, rows: int, memory: "Mapping[str, Tensor]") -> "Dict[str, np.ndarray]":
        """An array for every output of known size: over ``memory`` where that has it, else over new memory."""
        return {
            name: memory[name].as_numpy() if name in memory else np.empty(self._shape(sized, rows), sized.dtype)
            for name, sized in self._sized.items()
        }

    def _shape(self, sized: "_Sized", rows: int) -> "Tuple[int, ...]":
        return (rows, *sized.shape) if self._batches else sized.shape


class _Sized:
    """An output whose size follows from the batch alone: its shape without the batch dimension, and the bytes of one row."""

    __slots__ = ("dtype", "row_bytes", "shape")

    def __init__(self, shape: "Tuple[int, ...]", dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype
        self.row_bytes = prod(shape) * dtype.itemsize

    @classmethod
    def of(cls, data_type: str, shape: "Optional[Tuple[int, ...]]", batches: bool) -> "Optional[_Sized]":
        """None if the size is not known before the output is computed."""
        if shape is None or data_type == "TYPE_STRING":
            return None
        known = shape[1:] if batches else shape
        return None if -1 in known else cls(known, np.dtype(TRITON_STRING_TO_NUMPY[data_type]))


def empty_outputs(signature: Signature) -> "Dict[str, np.ndarray]":
    """The outputs for no rows: by name, arrays whose first dimension is 0, as is each dimension of any size."""
    return {
        tensor.name: np.empty(
            [max(0, size) for size in tensor.shape or (0,)],
            np.object_ if tensor.data_type == "TYPE_STRING" else triton_string_to_numpy(tensor.data_type),
        )
        for tensor in signature.outputs
    }
