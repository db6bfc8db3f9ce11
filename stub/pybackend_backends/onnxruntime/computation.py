"""Runs a session: strings become text, and large outputs are computed where they are sent from."""

from math import prod
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from pybackend_sdk.backend import Signature
from pybackend_sdk.datatypes import TRITON_STRING_TO_NUMPY
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.tensor import Tensor

_LARGE_BYTES = 256 * 1024
"""From this size on, binding memory to an output costs less than copying it, which a run without bindings needs."""

Output = Union["np.ndarray", Tensor]


class Computation:
    """Computes a model's outputs.

    Args:
        session: an open session of ONNX Runtime.
        run_options: of every run, None for the usual ones.
        signature: of its file.
        batches: whether the first dimension of every tensor is the batch's.
    """

    def __init__(self, session: Any, run_options: Any, signature: Signature, *, batches: bool) -> None:
        self._session = session
        self._run_options = run_options
        self._scalars = {tensor.name for tensor in signature.inputs if tensor.shape == ()}
        self._converts = bool(self._scalars) or any(tensor.data_type == "TYPE_STRING" for tensor in signature.inputs)
        self._sized = {tensor.name: _Sized.of(tensor.data_type, tensor.shape, batches) for tensor in signature.outputs}
        self._binds = any(self._sized.values())
        self._batches = batches

    def __call__(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> Mapping[str, Output]:
        """Compute the named outputs; arguments and result as of :data:`pybackend_sdk.backend.Run`."""
        if self._converts:
            inputs = {name: self._converted(name, array) for name, array in inputs.items()}
        if self._binds:
            large = self._large(inputs, names)
            if large:
                return self._bound(inputs, names, large)
        return dict(zip(names, self._session.run(names, inputs, self._run_options)))

    def _converted(self, name: str, array: "np.ndarray") -> "np.ndarray":
        if array.dtype == np.object_:
            array = _as_text(name, array)
        return array.reshape(()) if name in self._scalars else array

    def _large(self, inputs: "Dict[str, np.ndarray]", names: Sequence[str]) -> "Dict[str, Tensor]":
        """Output memory for each large output of known size."""
        rows = len(next(iter(inputs.values()))) if self._batches and inputs else 1
        found = {}
        for name in names:
            sized = self._sized.get(name)
            if sized is not None and sized.row_bytes * rows >= _LARGE_BYTES:
                shape = (rows, *sized.shape) if self._batches else sized.shape
                found[name] = Tensor.empty(name, shape, sized.dtype)
        return found

    def _bound(
        self, inputs: "Dict[str, np.ndarray]", names: Sequence[str], large: "Dict[str, Tensor]"
    ) -> Mapping[str, Output]:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name in names:
            tensor = large.get(name)
            if tensor is None:
                binding.bind_output(name)
            else:
                array = tensor.as_numpy()
                binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.__array_interface__["data"][0])
        self._session.run_with_iobinding(binding, self._run_options)
        outputs: Dict[str, Output] = {}
        for name, value in zip(names, binding.get_outputs()):
            outputs[name] = large.get(name) or value.numpy()
        return outputs


class _Sized:
    """An output whose size follows from the batch alone.

    Attributes:
        shape: without the batch dimension.
        dtype: of its elements.
        row_bytes: its size for a batch of one.
    """

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


def _as_text(name: str, array: "np.ndarray") -> "np.ndarray":
    """Strings as ONNX has them, from the bytes of a request."""
    text = np.empty(array.shape, np.object_)
    try:
        elements: List[str] = [element.decode("utf-8") for element in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise TritonModelException(f"input '{name}' has an element that is not UTF-8 text: {error.reason}") from None
    text.reshape(-1)[:] = elements
    return text
