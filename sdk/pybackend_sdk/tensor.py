"""``Tensor``: a name and an array. Inputs are views of the memory they arrived in; outputs alias the model's arrays.

On a request's path, bytes become arrays here and arrays become bytes, without unnecessary copies.
"""

from itertools import accumulate
from math import prod
from operator import attrgetter, index, itemgetter
from typing import Any, List, Sequence, Tuple, Union

import numpy as np

from pybackend_sdk.arguments import incompatible, text
from pybackend_sdk.datatypes import TritonDataType, deserialize_bytes_tensor
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import current_runtime
from pybackend_wire import dlpack
from pybackend_wire.bytes_tensor import BytesTensorError, encode_elements
from pybackend_wire.dlpack_abi import DeviceType
from pybackend_wire.dtypes import BY_NUMPY, DATATYPES

DTYPES = {row.name: row.numpy for row in BY_NUMPY.values()}
"""By datatype; BF16 and BYTES have none."""

_SHAPE, _DATA, _FIRST = attrgetter("_shape"), attrgetter("_data"), itemgetter(0)

_array: Any = np.ndarray

_SMALL_BYTES = 1 << 20
"""Up to this size, tensors are joined as bytes, without an array of each. Beyond it NumPy's memory is the better one.
"""


class Tensor:
    """A named array, made from a NumPy array or by :meth:`from_dlpack`. A request's inputs are tensors too.

    A C-contiguous array is aliased until the response or request that holds it is sent: later edits in place count.
    An array in another order is copied. BYTES (dtype ``object`` or ``S<n>``) are serialised at once.

    Args:
        name: the input's or output's name, not empty.
        numpy_array: an array, not a list. ``bool``, integers of 8 to 64 bits, floats of 16 to 64 bits in native byte
            order, ``object`` and ``S<n>`` can be sent.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: the name is empty, or the array's dtype has no datatype.
    """

    __module__ = "c_python_backend_utils"
    # _data is the wire form: the buffer a tensor arrived in, a numeric array, or serialised BYTES.
    # _array is the result of as_numpy(); in a tensor that arrived it is None until the first call.
    __slots__ = ("__weakref__", "_array", "_copy", "_data", "_datatype", "_name", "_shape")

    _name: str
    _datatype: str
    _shape: "Sequence[int]"
    _data: Any
    _array: Any
    _copy: bool

    def __init__(self, name: str, numpy_array: "np.ndarray", /) -> None:
        if type(numpy_array) is not _array and not isinstance(numpy_array, np.ndarray):
            incompatible("Tensor", "numpy_array", "a numpy.ndarray", numpy_array)
        if type(name) is not str or not name or not name.isascii():
            name = _checked_name("Tensor", name)
        self._name = name
        row = BY_NUMPY.get(numpy_array.dtype)
        if row is not None:
            if not numpy_array.flags.c_contiguous:
                numpy_array = np.ascontiguousarray(numpy_array)
            self._datatype = row.name
            self._data = numpy_array
        elif numpy_array.dtype.kind in "OS":
            self._datatype = "BYTES"
            self._data = encode_elements(numpy_array.ravel().tolist())
        else:
            use = "bool, int8-64, uint8-64, float16-64 in native byte order, object or bytes"
            if numpy_array.dtype.kind == "U":
                use = "`.astype(object)` for an array of str"
            raise TritonModelException(
                f"NumPy dtype is not supported. Tensor '{self._name}' has dtype {numpy_array.dtype}; use {use}."
            )
        self._array = numpy_array
        self._shape = numpy_array.shape
        self._copy = False

    @classmethod
    def _from_wire(
        cls, name: str, datatype: str, shape: "Sequence[int]", data: Any, copy: bool = False, array: Any = None
    ) -> "Tensor":
        """Make a tensor from bytes that arrived. This is the hot path: nothing is checked, and nothing decoded yet.

        The data has exactly the tensor's bytes in wire form, writable if arrays must be. Arrays and DLPack consumers
        keep it alive (for a memoryview, the object it is a view of). With ``copy``, ``as_numpy()`` makes a private
        copy, so that edits in place do not change the wire form. If the data is an array already, and needs no copy, it
        is passed as ``array`` too.
        """
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._data = data
        tensor._copy = copy
        tensor._array = array
        return tensor

    def name(self) -> str:
        """The input's or output's name."""
        return self._name

    def shape(self) -> List[int]:
        """The dimensions, the batch dimension included."""
        return list(self._shape)

    def triton_dtype(self) -> Any:
        """The datatype, e.g. ``FP32``; ``int()`` of it is an argument for ``triton_to_numpy_type``."""
        return TritonDataType[self._datatype]

    def is_cpu(self) -> bool:
        """True: tensors lie in host memory."""
        return True

    def as_numpy(self) -> "np.ndarray":
        """The tensor as a NumPy array; always the same object.

        Returns:
            The original array of a tensor made here. For a tensor that arrived, a writable view of its memory, which
            stays valid after the request; for BYTES, an object array of ``bytes``.

        Raises:
            TritonModelException: the datatype is BF16, which NumPy does not have, or the bytes are not a BYTES tensor
                of this shape.
        """
        array: np.ndarray = self._array
        if array is None:
            array = self._array = self._decoded()
        return array

    def _decoded(self) -> "np.ndarray":
        dtype = DTYPES.get(self._datatype)
        if dtype is None:
            return self._decoded_without_dtype()
        array = np.ndarray(self._shape, dtype, self._data)
        return array.copy() if self._copy else array

    def _decoded_without_dtype(self) -> "np.ndarray":
        if self._datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        try:
            return deserialize_bytes_tensor(self._data).reshape(self._shape)
        except BytesTensorError as error:
            raise TritonModelException(str(error)) from None
        except ValueError:
            raise TritonModelException(
                f"Invalid bytes tensor data: the number of elements in tensor '{self._name}' does not match its shape "
                f"{list(self._shape)}"
            ) from None

    @classmethod
    def _of(cls, name: str, array: "np.ndarray") -> "Tensor":
        """Make a tensor like the constructor, for a name that is known to be one."""
        row = BY_NUMPY.get(array.dtype)
        if row is None or not array.flags.c_contiguous:
            return cls(name, array)
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = row.name
        tensor._data = tensor._array = array
        tensor._shape = array.shape
        tensor._copy = False
        return tensor

    @staticmethod
    def _joined(tensors: "Sequence[Tensor]") -> "np.ndarray":
        """A new array of tensors that follow each other along the first dimension. They are alike otherwise."""
        first = tensors[0]
        dtype = DTYPES.get(first._datatype)
        if dtype is not None:
            rest = first._shape[1:]
            rows = sum(map(_FIRST, map(_SHAPE, tensors)))
            if 0 < rows * prod(rest) * dtype.itemsize <= _SMALL_BYTES:
                joined = bytearray().join(map(_DATA, tensors))
                return np.frombuffer(joined, dtype).reshape((rows, *rest))
        return np.concatenate([tensor.as_numpy() for tensor in tensors])

    @classmethod
    def _split(cls, name: str, array: "np.ndarray", rows: "Sequence[int]") -> "List[Tensor]":
        """Tensors that view so many rows each of an array, one after the other, under one name."""
        parts = _parts(array, rows)
        row = BY_NUMPY.get(array.dtype)
        if row is None or not array.flags.c_contiguous:
            return [cls(name, part) for part in parts]
        datatype, new, tensors = row.name, cls.__new__, []
        for part in parts:
            tensor = new(cls)
            tensor._name = name
            tensor._datatype = datatype
            tensor._data = tensor._array = part
            tensor._shape = part.shape
            tensor._copy = False
            tensors.append(tensor)
        return tensors

    def _payload(self) -> Any:
        """The wire form, C-contiguous: an array, ``bytes``, or the buffer in which the tensor arrived."""
        return self._data

    def to_dlpack(self) -> Any:
        """A DLPack capsule of the tensor's own memory; it and its consumer keep the tensor alive.

        Raises:
            TritonModelException: the datatype is BYTES.
        """
        return self._capsule(copies=self._copy)

    def _capsule(self, *, copies: bool) -> Any:
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if copies:
            copy = Tensor._from_wire(self._name, self._datatype, self._shape, bytearray(self._data))
            return dlpack.export_memory(copy, copy._address(), copy._shape, copy._datatype)
        return dlpack.export_memory(self, self._address(), self._shape, self._datatype)

    def _address(self) -> int:
        data = self._data
        if not isinstance(data, np.ndarray):
            if not len(data):
                return 0
            data = np.frombuffer(data, np.uint8)
        address: int = data.__array_interface__["data"][0]
        return address

    def __dlpack__(
        self, stream: Any = None, *, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """Like :meth:`to_dlpack`: host memory needs no stream.

        Raises BufferError: a library wants it in the memory of another device.
        """
        dlpack.check_destination(dl_device)
        return self._capsule(copies=self._copy or bool(copy))

    def __dlpack_device__(self) -> Tuple[int, int]:
        """DLPack's device type and id: ``(1, 0)``, host memory."""
        return (int(DeviceType.CPU), 0)

    @staticmethod
    def from_dlpack(name: str, obj: Any, /) -> "Tensor":
        """Make a tensor from another library's memory, without a copy.

        Args:
            name: the tensor's name, not empty.
            obj: an unconsumed DLPack capsule, or an object with ``__dlpack__`` and ``__dlpack_device__``,
                such as a torch tensor.

        Raises:
            TypeError: the name is not text.
            TritonModelException: the name is empty; ``obj`` is neither of these; it is not C-contiguous, not in host
                memory, or has a datatype that cannot be sent.
        """
        tensor = Tensor.__new__(Tensor)
        tensor._name = _checked_name("from_dlpack", name)
        try:
            tensor._data, tensor._datatype = dlpack.import_memory(obj)
        except dlpack.DlpackError as error:
            raise TritonModelException(str(error)) from None
        tensor._shape = tensor._data.shape
        # BF16 travels as 16-bit integers, and as_numpy() must not return those.
        tensor._array = tensor._data if DATATYPES[tensor._datatype].numpy is not None else None
        tensor._copy = False
        return tensor

    @staticmethod
    def empty(name: str, shape: "Sequence[int]", dtype: Any) -> "Tensor":
        """Make an output to be filled in place: a large one lies in output memory already, and is sent without a copy.

        Fill ``as_numpy()``, or what another library makes of ``to_dlpack()``, before the response is sent. From then on
        the memory belongs to the response, and the array is read-only.

        Args:
            name: the tensor's name, not empty.
            shape: the dimensions, the batch dimension included.
            dtype: a NumPy dtype that has a datatype, or ``"BF16"``. Not ``object`` or ``S<n>``: the size of strings is
                not known before they are there.

        Returns:
            A tensor with arbitrary contents.

        Raises:
            TypeError: the name is not text, or NumPy does not understand the dtype or the shape.
            TritonModelException: the name is empty, the dtype has no datatype of a fixed size, a dimension is negative,
                or the output memory that this instance may use is exhausted.
        """
        tensor = Tensor.__new__(Tensor)
        tensor._name = _checked_name("empty", name)
        is_bf16 = isinstance(dtype, str) and dtype == "BF16"
        dtype = np.dtype(np.uint16 if is_bf16 else dtype)
        row = BY_NUMPY.get(dtype)
        if row is None:
            raise TritonModelException(
                f"An empty tensor cannot have dtype {dtype}. Tensor '{name}' needs bool, int8-64, uint8-64 or float16-64 "
                "in native byte order, or 'BF16'."
            )
        tensor._datatype = "BF16" if is_bf16 else row.name
        tensor._data = array = _empty_array(name, shape, dtype)
        tensor._shape = array.shape
        tensor._array = None if is_bf16 else array
        tensor._copy = False
        return tensor


def _empty_array(name: str, shape: "Sequence[int]", dtype: "np.dtype[Any]") -> "np.ndarray":
    dimensions = [index(dimension) for dimension in shape]
    if min(dimensions, default=0) < 0:
        raise TritonModelException(f"Tensor '{name}' cannot have the shape {dimensions}: a dimension is negative.")
    buffer = current_runtime().output_buffer(prod(dimensions) * dtype.itemsize)
    if buffer is None:
        return np.empty(dimensions, dtype)
    return np.frombuffer(buffer, dtype).reshape(dimensions)


def _parts(array: "np.ndarray", rows: "Sequence[int]") -> "List[np.ndarray]":
    """Views of so many rows each, one after the other."""
    count = rows[0]
    if count and array.flags.c_contiguous and rows.count(count) == len(rows):
        return list(array.reshape((len(rows), count, *array.shape[1:])))  # one call instead of one for each
    ends = list(accumulate(rows))
    return [array[end - count : end] for end, count in zip(ends, rows)]


def _checked_name(call: str, name: Union[str, bytes]) -> str:
    checked = text(call, "name", name)
    if not checked:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return checked
