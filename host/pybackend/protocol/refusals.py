"""Errors for invalid requests that do not depend on the protocol. Used by the codecs of HTTP's and gRPC's infer."""

from __future__ import annotations

from pybackend.errors import InferenceError, invalid
from pybackend.inference.request import request_prefix
from pybackend.protocol.limits import MOST_DIMS
from pybackend_wire.dtypes import DATATYPES

_OTHER_NAMES = {
    "STRING": "BYTES", "STR": "BYTES", "OBJECT": "BYTES", "FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16",
    "FLOAT32": "FP32", "FLOAT64": "FP64", "BFLOAT16": "BF16", "INT": "INT64", "BOOLEAN": "BOOL",
}  # fmt: skip
"""Names that configurations, numpy and others have for a datatype, in upper case."""


def too_many_dims_error(name: str, count: int) -> InferenceError:
    """The error for an input's shape of more than ``MOST_DIMS`` dimensions."""
    return invalid(f"invalid shape for input '{name}': it has {count} dimensions, at most {MOST_DIMS} can be")


def datatype_error(name: str, datatype: str) -> InferenceError:
    """The error for an input of an unknown datatype."""
    short = datatype.upper().removeprefix("TYPE_")
    meant = _OTHER_NAMES.get(short, short)
    question = f"did you mean {meant}? " if meant in DATATYPES else ""
    return invalid(f"invalid datatype for input {name}: {question}it must be one of {', '.join(DATATYPES)}")


def repeated_error(kind: str, name: str, request_id: str) -> InferenceError:
    """The error for a second input or output of the same name; ``kind`` is either word."""
    return invalid(f"{request_prefix(request_id)}{kind} '{name}' already exists in request")


def region_size_error(tensor_name: str) -> InferenceError:
    """The error for a tensor in a shared memory region without a size."""
    return invalid(
        f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
        f"'{tensor_name}'"
    )


def classes_in_region_error() -> InferenceError:
    """The error for an output requested both as classes and in shared memory."""
    return invalid("Output can't set both 'shared_memory_region' and 'classification'")
