"""Request tensors as torch tensors and back, over the same memory."""

import warnings
from typing import Any, List, Sequence, Union

import numpy as np
import torch

from pybackend_sdk.backend import Form
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.tensor import Tensor
from pybackend_wire.dtypes import BY_NUMPY

# Views of clients' memory (CLIENT_MEMORY) and earlier outputs are read-only; models that write to an input copy it.
warnings.filterwarnings("ignore", message="The given NumPy array is not writ")

Value = Union[torch.Tensor, List[str]]

_DATATYPES = {getattr(torch, dtype.name): row.name for dtype, row in BY_NUMPY.items() if hasattr(torch, dtype.name)}
_DATATYPES[torch.bfloat16] = "BF16"


def datatype_of(dtype: Any) -> str:
    """The datatype of a torch dtype, such as ``FP32``; the dtype's own name if it cannot be sent."""
    return _DATATYPES.get(dtype, str(dtype))


def to_torch(tensor: Tensor) -> Value:
    """A request's tensor as torch has it: the same memory, or a list of texts for BYTES of any shape."""
    name = str(tensor.triton_dtype().name)
    if name == "BYTES":
        try:
            return [element.decode("utf-8") for element in tensor.as_numpy().ravel()]
        except UnicodeDecodeError:
            raise TritonModelException(
                f"Input '{tensor.name()}' has an element that is not UTF-8, and TorchScript has only text."
            ) from None
    if name == "BF16":
        return torch.from_dlpack(tensor)
    return torch.from_numpy(tensor.as_numpy())


def from_torch(name: str, value: Any) -> Tensor:
    """An output over the memory of a torch tensor; a list of texts becomes BYTES."""
    if isinstance(value, torch.Tensor):
        return _from_tensor(name, value)
    if isinstance(value, (int, float)):  # TorchScript returns plain numbers as such
        return _from_tensor(name, torch.tensor(value))
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        texts = np.empty(len(value), np.object_)
        texts[:] = value
        return Tensor(name, texts)
    raise TritonModelException(
        f"Output '{name}' must be a tensor or a list of strings; the model returned {type(value).__name__}."
    )


def _from_tensor(name: str, tensor: Any) -> Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.dtype not in _DATATYPES:
        raise TritonModelException(
            f"Output '{name}' has torch's dtype {tensor.dtype}, which cannot be sent. Convert it in the model."
        )
    tensor = tensor.contiguous()
    if tensor.dtype is torch.bfloat16:
        return Tensor.from_dlpack(name, tensor)
    return Tensor(name, tensor.resolve_neg().numpy())


class TorchTensors(Form):
    """Torch tensors, and lists of texts for BYTES; the texts of an output form a column if the model batches."""

    read = staticmethod(to_torch)

    def __init__(self, *, batches: bool) -> None:
        self._batches = batches

    def join(self, tensors: Sequence[Tensor]) -> Value:
        values = list(map(to_torch, tensors))
        if isinstance(values[0], torch.Tensor):
            return torch.cat(values)
        return [text for texts in values for text in texts]

    def write(self, name: str, value: Any) -> Tensor:
        tensor = from_torch(name, value)
        if self._batches and isinstance(value, list):
            column: np.ndarray = tensor.as_numpy().reshape(-1, 1)
            return Tensor(name, column)
        return tensor
