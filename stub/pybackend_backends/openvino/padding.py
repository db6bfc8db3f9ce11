"""Computes batches of any size up to the one that a model's file fixes."""

from typing import Any, Dict, Mapping, Sequence

import numpy as np

from pybackend_sdk.backend.batching import Run
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.tensor import Tensor


class FixedBatch:
    """Wraps a computation that takes batches of one size.

    Args:
        pads: whether smaller batches are filled up; else they are refused.
    """

    def __init__(self, run: Run, size: int, *, pads: bool) -> None:
        self._run = run
        self._size = size
        self._pads = pads

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> "Mapping[str, Any]":
        """Compute the named outputs for as many rows as there are; as of :data:`pybackend_sdk.backend.Run`."""
        rows = len(next(iter(inputs.values())))
        if rows == self._size:
            return self._run(inputs, names)
        if not self._pads:
            raise TritonModelException(
                f"the batch has {rows} rows, and the model's file fixes them to {self._size}: send as many, or let the server "
                'fill up smaller batches, with parameters ENABLE_BATCH_PADDING "YES"'
            )
        outputs = self._run({name: self._padded(array) for name, array in inputs.items()}, names)
        return {name: _array(output)[:rows] for name, output in outputs.items()}

    def _padded(self, array: "np.ndarray") -> "np.ndarray":
        filler = b"" if array.dtype == np.object_ else 0
        padded: np.ndarray = np.full((self._size, *array.shape[1:]), filler, array.dtype)
        padded[: len(array)] = array
        return padded


def _array(output: Any) -> Any:
    return output.as_numpy() if isinstance(output, Tensor) else output
