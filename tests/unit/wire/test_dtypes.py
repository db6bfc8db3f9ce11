"""The table of datatypes agrees with itself, with NumPy and with the protocol's enumeration."""

import numpy as np
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import np_to_triton_dtype

from pybackend_wire.dtypes import BY_CONFIG_NAME, BY_NUMPY, DATATYPES, ITEMSIZE


def test_codes_are_those_of_the_configuration_schema():
    for row in DATATYPES.values():
        assert model_config_pb2.DataType.Value(row.config_name) == row.code
    assert len(DATATYPES) == len(model_config_pb2.DataType.items()) - 1  # TYPE_INVALID


def test_names_are_the_clients():
    for dtype, row in BY_NUMPY.items():
        assert np_to_triton_dtype(dtype) == row.name
    assert np_to_triton_dtype(np.dtype(object)) == "BYTES"


def test_sizes():
    for row in DATATYPES.values():
        assert ITEMSIZE[row.name] == row.itemsize
        assert BY_CONFIG_NAME[row.config_name] is row
        if row.name not in {"BYTES", "BF16"}:
            assert row.numpy.itemsize == row.itemsize
            assert BY_NUMPY[row.numpy] is row
    assert (DATATYPES["BF16"].numpy, ITEMSIZE["BF16"], ITEMSIZE["BYTES"]) == (None, 2, 0)
