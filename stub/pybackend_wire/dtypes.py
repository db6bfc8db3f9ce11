"""The only table of tensor datatypes: wire name, config name, numpy dtype, size, and the number that models use."""

from typing import Dict, NamedTuple, Optional

import numpy as np


class DataType(NamedTuple):
    """One tensor datatype."""

    name: str
    config_name: str  # name in config.pbtxt, e.g. ``TYPE_FP32`` (``TYPE_STRING`` for ``BYTES``).
    code: int  # number in the C enumeration, the argument of ``triton_to_numpy_type``
    itemsize: int  # bytes per element; 0 for ``BYTES``, whose elements have individual lengths
    numpy: "Optional[np.dtype]"  # native numpy dtype; None if numpy has no such type (``BF16``)


def _row(name: str, code: int, itemsize: int, numpy_type: object) -> DataType:
    config_name = "TYPE_STRING" if name == "BYTES" else "TYPE_" + name
    return DataType(name, config_name, code, itemsize, None if numpy_type is None else np.dtype(numpy_type))  # type: ignore[call-overload]


DATATYPES: Dict[str, DataType] = {
    row.name: row
    for row in (
        _row("BOOL", 1, 1, np.bool_),
        _row("UINT8", 2, 1, np.uint8),
        _row("UINT16", 3, 2, np.uint16),
        _row("UINT32", 4, 4, np.uint32),
        _row("UINT64", 5, 8, np.uint64),
        _row("INT8", 6, 1, np.int8),
        _row("INT16", 7, 2, np.int16),
        _row("INT32", 8, 4, np.int32),
        _row("INT64", 9, 8, np.int64),
        _row("FP16", 10, 2, np.float16),
        _row("FP32", 11, 4, np.float32),
        _row("FP64", 12, 8, np.float64),
        _row("BYTES", 13, 0, np.object_),
        _row("BF16", 14, 2, None),
    )
}
"""Every datatype by its wire name."""

BY_CONFIG_NAME: Dict[str, DataType] = {row.config_name: row for row in DATATYPES.values()}
"""Every datatype by its name in config.pbtxt."""

BY_NUMPY: "Dict[np.dtype, DataType]" = {
    row.numpy: row for row in DATATYPES.values() if row.numpy is not None and row.name != "BYTES"
}
"""Fixed-size datatypes by native numpy dtype."""

ITEMSIZE: Dict[str, int] = {row.name: row.itemsize for row in DATATYPES.values()}
"""Bytes per element by wire name; 0 for ``BYTES``."""


def conversion(datatype: str) -> str:
    """How NumPy makes an array of a datatype, as the end of a sentence; ``""`` if it cannot."""
    dtype = DATATYPES[datatype].numpy
    if dtype is None:
        return ""
    return f": `.astype({'object' if datatype == 'BYTES' else f'np.{dtype}'})` makes it"
