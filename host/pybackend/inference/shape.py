"""Shapes from clients: the number of elements they claim, and their form in messages."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.errors import ErrorCode, InferenceError
from pybackend_wire.dtypes import ITEMSIZE

INT64_MAX = 2**63 - 1


def element_count(name: str, datatype: str, shape: Sequence[int]) -> int:
    """The number of elements that an input's shape claims.

    Args:
        name: the input's name, for messages.
        datatype: a wire name.
        shape: dimensions, none of them negative.

    Raises:
        InferenceError: INVALID_ARG, the element count, the byte size or a dimension does not fit in 63 bits.
    """
    count = 0 if 0 in shape else _bounded_product(shape)
    if count > INT64_MAX or any(dim > INT64_MAX for dim in shape):
        raise InferenceError(
            f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed "
            f"maximum size of {INT64_MAX}",
            ErrorCode.INVALID_ARG,
        )
    itemsize = ITEMSIZE[datatype]
    if count * itemsize > INT64_MAX:
        raise InferenceError(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({itemsize}) exceeds "
            f"maximum allowed size ({INT64_MAX})",
            ErrorCode.INVALID_ARG,
        )
    return count


def _bounded_product(dims: Sequence[int]) -> int:
    """The product, or a number beyond 63 bits. A shape with a million large dimensions costs no more than its text."""
    product = 1
    for dim in dims:
        product *= dim
        if product > INT64_MAX:
            break
    return product


def shape_text(shape: Sequence[int]) -> str:
    """A shape in the form used by messages, e.g. ``[-1,16]``."""
    return "[" + ",".join(map(str, shape)) + "]"
