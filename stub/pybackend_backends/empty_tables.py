"""Answers to tables without rows, which clients may send and libraries refuse."""

from typing import Dict

import numpy as np

from pybackend_sdk.backend import Signature
from pybackend_sdk.datatypes import triton_string_to_numpy


def empty_outputs(signature: Signature) -> "Dict[str, np.ndarray]":
    """The outputs for no rows: by name, arrays whose first dimension is 0, as is each dimension of any size."""
    return {
        tensor.name: np.empty(
            [max(0, size) for size in tensor.shape or (0,)],
            np.object_ if tensor.data_type == "TYPE_STRING" else triton_string_to_numpy(tensor.data_type),
        )
        for tensor in signature.outputs
    }
