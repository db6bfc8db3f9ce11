"""``Form``: how a framework holds the values of tensors, and how these are joined and split along the batch dimension."""

from abc import ABC, abstractmethod
from itertools import accumulate
from typing import Any, List, Sequence, Union

import numpy as np

from pybackend_sdk.tensor import Tensor


class Form(ABC):
    """How the values are held that a backend's ``run`` takes and returns. Each has rows."""

    @abstractmethod
    def read(self, tensor: Tensor, /) -> Any:
        """Make a value of an input."""

    @abstractmethod
    def join(self, tensors: Sequence[Tensor], /) -> Any:
        """Make one value of inputs that follow each other along the first dimension. They are alike otherwise."""

    @abstractmethod
    def write(self, name: str, value: Any, /) -> Tensor:
        """Make an output of a value."""

    def split(self, name: str, value: Any, rows: Sequence[int], /) -> List[Tensor]:
        """Make outputs of so many rows each of a value, one after the other.

        Args:
            name: of each output.
            value: sliced by its rows.
            rows: of each output; together as many as the value has.
        """
        ends = list(accumulate(rows))
        return [self.write(name, value[end - count : end]) for end, count in zip(ends, rows)]


class _Arrays(Form):
    read = staticmethod(Tensor.as_numpy)
    join = staticmethod(Tensor._joined)
    split = staticmethod(Tensor._split)

    def write(self, name: str, value: "Union[np.ndarray, Tensor]", /) -> Tensor:
        return value if isinstance(value, Tensor) else Tensor._of(name, value)


ARRAYS = _Arrays()
"""NumPy arrays; outputs can also be tensors."""
