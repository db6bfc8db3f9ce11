"""How large the parts of a request may be, and how large a shape may claim to be.

Where: consulted by the codecs before anything is allocated by a number that a client chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pybackend.errors import ErrorCode, InferenceError
from pybackend_wire.dtypes import ITEMSIZE

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1

_FLAG_ADVICE = "Use --http-max-input-size to increase the limit."


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds of a request body. Binary tensors are not bounded here: the model's own shapes bound them.

    Attributes:
        max_input_size_bytes: the most bytes that a JSON document, one tensor sent as JSON, a raw body or a
            decompressed body may have.
    """

    max_input_size_bytes: int = 64 * 1024 * 1024

    def check_json(self, size_bytes: int) -> None:
        """Refuse a JSON document that is too large.

        Raises:
            InferenceError: INVALID_ARG, if it has more bytes than allowed.
        """
        if size_bytes > self.max_input_size_bytes:
            raise _invalid(
                f"request JSON size of {size_bytes} bytes exceeds the maximum allowed input size of "
                f"{self.max_input_size_bytes} bytes. {_FLAG_ADVICE}"
            )

    def check_json_tensor(self, name: str, size_bytes: int) -> None:
        """Refuse a tensor sent as JSON that would be too large in wire form.

        Raises:
            InferenceError: INVALID_ARG, if it would have more bytes than allowed.
        """
        if size_bytes > self.max_input_size_bytes:
            raise _invalid(f"JSON input '{name}' {self._exceeds(size_bytes)}")

    def check_raw(self, size_bytes: int) -> None:
        """Refuse a raw body (one tensor, no JSON) that is too large.

        Raises:
            InferenceError: INVALID_ARG, if it has more bytes than allowed.
        """
        if size_bytes > self.max_input_size_bytes:
            raise _invalid(f"Raw input {self._exceeds(size_bytes)}")

    def check_decompressed(self, size_bytes: int) -> None:
        """Refuse a compressed body that has grown too large, complete or not.

        Raises:
            InferenceError: INVALID_ARG, if it has more bytes than allowed.
        """
        if size_bytes > self.max_input_size_bytes:
            raise _invalid(
                f"Decompressed data size exceeds the maximum allowed value of {self.max_input_size_bytes} bytes. "
                f"{_FLAG_ADVICE}"
            )

    def _exceeds(self, size_bytes: int) -> str:
        return (
            f"has a byte_size ({size_bytes} bytes) that exceeds the maximum allowed value of "
            f"{self.max_input_size_bytes} bytes. {_FLAG_ADVICE}"
        )


def element_count(name: str, datatype: str, shape: Sequence[int]) -> int:
    """The number of elements that an input's shape claims.

    Args:
        name: the input's name, for messages.
        datatype: a wire name.
        shape: dimensions, none of them negative.

    Raises:
        InferenceError: INVALID_ARG, if elements, bytes or a dimension cannot be counted in 63 bits.
    """
    count = 0 if 0 in shape else _bounded_product(shape)
    if count > INT64_MAX or any(dim > INT64_MAX for dim in shape):
        raise _invalid(
            f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed "
            f"maximum size of {INT64_MAX}"
        )
    itemsize = ITEMSIZE[datatype]
    if count * itemsize > INT64_MAX:
        raise _invalid(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({itemsize}) exceeds "
            f"maximum allowed size ({INT64_MAX})"
        )
    return count


def _bounded_product(dims: Sequence[int]) -> int:
    """The product, or some number beyond 63 bits: a shape of a million large dimensions costs no more than its text."""
    product = 1
    for dim in dims:
        product *= dim
        if product > INT64_MAX:
            break
    return product


def shape_text(shape: Sequence[int]) -> str:
    """A shape as messages show it, e.g. ``[-1,16]``."""
    return "[" + ",".join(map(str, shape)) + "]"


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, ErrorCode.INVALID_ARG)
