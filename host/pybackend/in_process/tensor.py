"""Tensors of calls: arrays, strings and other libraries' memory in, and out again."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import prod
from operator import index
from typing import Any

import numpy as np

from pybackend.in_process.errors import InvalidArgumentError, UnsupportedError
from pybackend.in_process.memory import (
    DeviceOrMemoryType,
    DLDeviceType,
    MemoryBuffer,
    MemoryType,
    OutputTarget,
    memory_of,
)
from pybackend.inference.tensor import LARGE_COPY_BYTES, Buffer, InputTensor
from pybackend_wire.bytes_tensor import decode_elements, encode_elements
from pybackend_wire.dlpack import DlpackError, check_destination, export_memory, import_memory
from pybackend_wire.dtypes import BY_NUMPY, DATATYPES, ITEMSIZE

DataType = StrEnum("DataType", [(name, name) for name in DATATYPES])  # type: ignore[misc]  # the table is the only list
DataType.__doc__ = "The datatypes of tensors, by their names in the protocol."

_MOST_SHOWN_BYTES, _MOST_SHOWN_CHARACTERS = 64 * 1024, 80
"""Strings that people are shown: all of a tensor's bytes, and the characters of one of them."""

_CPU = (DLDeviceType.kDLCPU, 0)
"""DLPack's device type and number of host memory."""

_STRINGS = "BYTES"
_TEXT_KINDS = frozenset("OSU")
_NUMBERS = (bool, int, float, np.bool_, np.number)


class Tensor:
    """An array without a name, in the host's memory: ``numpy.asarray(tensor)``, ``torch.from_dlpack(tensor)``.

    ``memory_buffer`` has the elements in C order, strings in the protocol's form: any object with bytes, or a
    MemoryBuffer.
    """

    __slots__ = ("_data", "_datatype", "_shape")

    memory_type = MemoryType.CPU
    memory_type_id = 0

    def __init__(self, data_type: str, shape: Sequence[int], memory_buffer: MemoryBuffer | Buffer) -> None:
        if data_type not in DATATYPES:
            raise InvalidArgumentError(f"'{data_type}' is no datatype: the datatypes are {', '.join(DATATYPES)}")
        try:
            dims: Sequence[int] = tuple(index(size) for size in shape)
        except TypeError:
            dims = (-1,)
        if min(dims, default=0) < 0:
            raise InvalidArgumentError(f"the shape of a tensor is a list of whole numbers from 0 on, not {shape!r}")
        data = memory_buffer.view() if isinstance(memory_buffer, MemoryBuffer) else memory_buffer
        nbytes, wanted = memoryview(data).nbytes, prod(dims) * ITEMSIZE[data_type]
        if nbytes != wanted and data_type != _STRINGS:
            raise InvalidArgumentError(f"a tensor {data_type}{list(shape)} has {wanted} bytes, not {nbytes}")
        self._datatype, self._shape, self._data = str(data_type), dims, _flat(data)

    @classmethod
    def of_model(cls, datatype: str, shape: Sequence[int], data: Buffer) -> Tensor:
        """A tensor whose size was checked."""
        tensor = cls.__new__(cls)
        tensor._datatype, tensor._shape, tensor._data = datatype, shape, data
        return tensor

    def __repr__(self) -> str:
        return f"Tensor({self._datatype}{list(self._shape)}: {self.shown()})"

    def shown(self) -> str:
        """The first and the last elements, for people."""
        if DATATYPES[self._datatype].numpy is None or (
            self._datatype == _STRINGS and len(self._data) > _MOST_SHOWN_BYTES
        ):
            return "..."
        array = self._array()
        if self._datatype == _STRINGS:
            array = np.array([_text(element) for element in array.ravel()], dtype=object).reshape(array.shape)
        return np.array2string(array, threshold=10, edgeitems=3, precision=6, separator=", ").replace("\n", "")

    @property
    def data_type(self) -> DataType:
        """The datatype, which equals its name in the protocol: ``"FP32"``."""
        return DataType(self._datatype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions, with the batch dimension if there is one."""
        return tuple(self._shape)

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self._data)

    @property
    def data_ptr(self) -> int:
        """The address of the elements."""
        address: int = np.frombuffer(self._data, np.uint8).__array_interface__["data"][0]
        return address

    @property
    def memory_buffer(self) -> MemoryBuffer:
        """The memory of the elements."""
        return MemoryBuffer(self.data_ptr, MemoryType.CPU, 0, self.size, self)

    def copied_to(self, place: OutputTarget, name: str) -> Tensor:
        """This output in memory that the caller brings."""
        return Tensor.of_model(self._datatype, self._shape, place.copy(name, memoryview(self._data)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The array; strings are ``bytes`` objects."""
        array = self._array()
        return (
            array if dtype is None and not copy else np.array(array, dtype=dtype, copy=bool(copy) or dtype is not None)
        )

    def _array(self) -> np.ndarray[Any, Any]:
        if self._datatype == _STRINGS:
            return self.to_bytes_array()
        dtype = DATATYPES[self._datatype].numpy
        if dtype is None:
            raise UnsupportedError(
                "NumPy has no BF16: pass the tensor to a library that has it, as torch.from_dlpack(tensor)"
            )
        return np.frombuffer(self._data, dtype).reshape(self._shape)

    def __dlpack__(self, *, stream: Any = None, dl_device: Any = None, **_options: Any) -> Any:
        """A DLPack capsule, which shares the tensor's memory."""
        check_destination(dl_device)
        if self._datatype == _STRINGS:
            raise UnsupportedError("DLPack has no strings: use to_string_array() or to_bytes_array()")
        return export_memory(self, self.data_ptr, self._shape, self._datatype)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and number: host memory."""
        return _CPU

    def to_bytes_array(self) -> np.ndarray[Any, Any]:
        """The strings as an array of ``bytes``."""
        self._check_strings()
        elements = np.empty(prod(self._shape), dtype=object)
        elements[:] = decode_elements(self._data)
        return elements.reshape(self._shape)

    def to_string_array(self) -> np.ndarray[Any, Any]:
        """The strings as an array of ``str``. Raises InvalidArgumentError: one of them is not UTF-8."""
        self._check_strings()
        try:
            elements = [element.decode() for element in decode_elements(self._data)]
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"a string of the tensor is not UTF-8 ({error}): use to_bytes_array()") from None
        return np.array(elements, dtype=np.str_).reshape(self._shape)

    def _check_strings(self) -> None:
        if self._datatype != _STRINGS:
            raise InvalidArgumentError(f"a tensor of {self._datatype} has no strings: use numpy.asarray(tensor)")

    def to_host(self) -> Tensor:
        """This tensor: it is in the host's memory."""
        return self

    def to_device(self, device: DeviceOrMemoryType) -> Tensor:
        """This tensor, if that is where it lies. Raises UnsupportedError: it is another device."""
        if memory_of(device)[0] is MemoryType.GPU:
            raise UnsupportedError(
                "this server has tensors in the host's memory: use torch.from_dlpack(tensor).to('cuda')"
            )
        return self

    @staticmethod
    def from_dlpack(source: Any) -> Tensor:
        """A tensor over the memory of another library, such as a torch tensor on the CPU."""
        try:
            array, datatype = import_memory(source)
        except DlpackError as error:
            raise UnsupportedError(str(error)) from None
        return Tensor.of_model(datatype, array.shape, _flat(np.ascontiguousarray(array)))

    @staticmethod
    def from_bytes_array(array: Any) -> Tensor:
        """A tensor of the ``bytes`` in an array or in nested lists."""
        found = np.asarray(array, dtype=object)
        return Tensor(_STRINGS, found.shape, _encoded("the tensor", found.ravel().tolist()))

    from_string_array = from_bytes_array


def _text(element: bytes) -> str:
    """A string for people."""
    text = element[: 4 * _MOST_SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
    return text if len(text) <= _MOST_SHOWN_CHARACTERS else text[:_MOST_SHOWN_CHARACTERS] + "..."


def tensor_of(name: str, value: Any) -> InputTensor:
    """An input; its bytes are private up to ``LARGE_COPY_BYTES``, and may be the caller's memory beyond.

    Raises InvalidArgumentError: the value cannot be a tensor.
    """
    if type(value) is np.ndarray:
        row = BY_NUMPY.get(value.dtype)
        if row is not None and value.nbytes < LARGE_COPY_BYTES:
            return InputTensor(name, row.name, value.shape, value.tobytes())
        return _of_array(name, value)
    if isinstance(value, Tensor):
        data = value._data
        if len(data) < LARGE_COPY_BYTES:
            data = bytes(data)
        return InputTensor(name, value._datatype, value.shape, data)
    if isinstance(value, np.ndarray | np.generic):
        return _of_array(name, np.asarray(value))
    if isinstance(value, list | tuple):
        return _of_list(name, value)
    if hasattr(value, "__dlpack__"):
        try:
            return tensor_of(name, Tensor.from_dlpack(value))
        except UnsupportedError as error:
            raise UnsupportedError(f"input '{name}': {error}") from None
    raise InvalidArgumentError(
        f"input '{name}' is of type {type(value).__name__}: pass a NumPy array, an object with __dlpack__, or a list of strings "
        "or numbers"
    )


def _of_array(name: str, array: np.ndarray[Any, Any]) -> InputTensor:
    row = BY_NUMPY.get(array.dtype)
    if row is not None:
        return InputTensor(name, row.name, array.shape, _octets(array))
    if array.dtype.kind in _TEXT_KINDS:
        return InputTensor(name, _STRINGS, array.shape, _encoded(f"input '{name}'", array.ravel().tolist()))
    native = array.dtype.newbyteorder("=")
    if native in BY_NUMPY:
        return _of_array(name, array.astype(native))
    raise InvalidArgumentError(f"input '{name}' has the dtype {array.dtype}, which is no datatype of the protocol")


def _octets(array: np.ndarray[Any, Any]) -> Buffer:
    """The bytes of an array in C order: a copy if it is small, else its own memory where that has this order."""
    if array.nbytes < LARGE_COPY_BYTES:
        return array.tobytes()
    return _flat(np.ascontiguousarray(array))


def _flat(memory: Any) -> Buffer:
    """The same memory as bytes; an empty one has no layout to cast."""
    view = memoryview(memory)
    return view.cast("B") if view.nbytes else b""


def _of_list(name: str, value: Sequence[Any]) -> InputTensor:
    """Strings, or what NumPy makes of bools and numbers: BOOL, INT64 and FP64."""
    try:
        elements = np.array(value, dtype=object)
        flat = elements.ravel().tolist()
        if any(isinstance(element, list | tuple) for element in flat):
            raise ValueError
    except ValueError:
        raise InvalidArgumentError(f"input '{name}': the lists in it have different lengths") from None
    if flat and all(isinstance(element, _NUMBERS) for element in flat):
        numbers = np.array(value)
        if numbers.dtype == object:
            raise InvalidArgumentError(f"input '{name}' is a list with a number that no datatype can hold")
        return _of_array(name, numbers)
    for element in flat:
        if not isinstance(element, str | bytes):
            raise InvalidArgumentError(
                f"input '{name}' is a list with {type(element).__name__} objects: lists hold strings, or bools and numbers. Make an "
                "array with a dtype, such as numpy.array(value, dtype=numpy.float32)"
            )
    return InputTensor(name, _STRINGS, elements.shape, _encoded(f"input '{name}'", flat))


def _encoded(what: str, elements: list[Any]) -> Buffer:
    try:
        return encode_elements(elements)
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} has a string with a lone surrogate, which UTF-8 cannot hold") from None
