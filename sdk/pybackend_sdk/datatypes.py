"""Datatypes under their various names (config.pbtxt, the C enumeration, NumPy), and the serialisation of BYTES.

These helpers for models read the one table in :mod:`pybackend_wire.dtypes`.
"""

from enum import IntEnum
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

from pybackend_wire.bytes_tensor import Buffer, decode_elements, encode_elements
from pybackend_wire.dtypes import DATATYPES

TritonDataType = IntEnum("TritonDataType", {row.name: row.code for row in DATATYPES.values()})  # type: ignore[misc]
"""The type of ``Tensor.triton_dtype()``: a name such as ``FP32`` that is also a number of the C enumeration."""
TritonDataType.__module__ = __name__

TRITON_STRING_TO_NUMPY: Dict[str, Any] = {
    row.config_name: row.numpy.type for row in DATATYPES.values() if row.numpy is not None
}
"""NumPy type by datatype name in config.pbtxt. ``TYPE_BF16`` has none."""
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool

TRITON_TO_NUMPY_TYPE: Dict[int, Any] = {row.code: row.numpy.type for row in DATATYPES.values() if row.numpy is not None}
"""NumPy type by datatype number."""

NUMPY_TO_TRITON_TYPE: Dict[Any, int] = {numpy_type: code for code, numpy_type in TRITON_TO_NUMPY_TYPE.items()}
"""Datatype number by NumPy type."""
NUMPY_TO_TRITON_TYPE[np.bytes_] = DATATYPES["BYTES"].code
NUMPY_TO_TRITON_TYPE[bool] = DATATYPES["BOOL"].code


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the NumPy type for a config.pbtxt name such as ``TYPE_FP32``.

    Raises:
        KeyError: NumPy has no such type (``TYPE_BF16``), or the name is not a datatype.
    """
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the NumPy type for a datatype number, None if there is none."""
    return TRITON_TO_NUMPY_TYPE.get(data_type)


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """Return the datatype number for a NumPy type or dtype, None if there is none."""
    return NUMPY_TO_TRITON_TYPE.get(data_type.type if isinstance(data_type, np.dtype) else data_type)


def serialize_byte_tensor(input_tensor: "np.ndarray") -> Union[bytes, Tuple[()], None]:
    """Serialise a BYTES array, elements in C order.

    Args:
        input_tensor: any shape; dtype ``object`` or ``S<n>``. In an object array ``bytes`` stay as they are, and every
            other element becomes ``str(element)`` in UTF-8.

    Returns:
        The bytes; an empty tuple for an array without elements; None for any other dtype.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return encode_elements(input_tensor.ravel().tolist())


def deserialize_bytes_tensor(encoded_tensor: Buffer) -> "np.ndarray":
    """Decode a serialised BYTES tensor into its elements.

    Returns:
        A one-dimensional object array of ``bytes``.

    Raises:
        ValueError: the data ends in the middle of a length field or an element.
    """
    elements = decode_elements(encoded_tensor)
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
