"""Limits of requests, and the errors for invalid ones, which JSON and gRPC share.

Codecs check sizes before they allocate memory for a size chosen by a client.
"""

from dataclasses import dataclass

from pybackend.errors import InferenceError, invalid
from pybackend.inference.request import request_prefix
from pybackend.inference.tensor import MOST_DIMS
from pybackend_wire.dtypes import DATATYPES

INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1

_FLAG_ADVICE = "Use --http-max-input-size to increase the limit."


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on a request body. Binary tensors are not limited here: the model's shapes limit them.

    Every method raises InferenceError, INVALID_ARG, for a size above the limit. The limit holds for a JSON document,
    one tensor sent as JSON, a raw body and a decompressed body.
    """

    max_input_size_bytes: int = 64 * 1024 * 1024

    def check_json(self, size_bytes: int) -> None:
        """Refuse a JSON document that is too large."""
        if size_bytes > self.max_input_size_bytes:
            raise invalid(
                f"request JSON size of {size_bytes} bytes exceeds the maximum allowed input size of "
                f"{self.max_input_size_bytes} bytes. {_FLAG_ADVICE}"
            )

    def check_json_tensor(self, name: str, size_bytes: int) -> None:
        """Refuse a tensor sent as JSON that would be too large in wire format."""
        if size_bytes > self.max_input_size_bytes:
            raise invalid(f"JSON input '{name}' {self._exceeds(size_bytes)}")

    def check_head(self, size_bytes: int) -> None:
        """Refuse a gRPC request with too many bytes outside its raw tensors."""
        if size_bytes > self.max_input_size_bytes:
            raise invalid(
                f"request message size of {size_bytes} bytes without raw_input_contents exceeds the maximum allowed input "
                f"size of {self.max_input_size_bytes} bytes. {_FLAG_ADVICE}"
            )

    def check_contents(self, name: str, size_bytes: int) -> None:
        """Refuse a tensor sent as a list of values in a gRPC message that would be too large in wire format."""
        if size_bytes > self.max_input_size_bytes:
            raise invalid(
                f"input '{name}' with contents {self._exceeds(size_bytes)} Tensors in raw_input_contents have no such limit."
            )

    def check_raw(self, size_bytes: int) -> None:
        """Refuse a raw body (one tensor, no JSON) that is too large."""
        if size_bytes > self.max_input_size_bytes:
            raise invalid(f"Raw input {self._exceeds(size_bytes)}")

    def check_decompressed(self, size_bytes: int) -> None:
        """Refuse a compressed body that is too large after decompression, complete or not."""
        if size_bytes > self.max_input_size_bytes:
            raise invalid(
                f"Decompressed data size exceeds the maximum allowed value of {self.max_input_size_bytes} bytes. "
                f"{_FLAG_ADVICE}"
            )

    def _exceeds(self, size_bytes: int) -> str:
        return (
            f"has a byte_size ({size_bytes} bytes) that exceeds the maximum allowed value of "
            f"{self.max_input_size_bytes} bytes. {_FLAG_ADVICE}"
        )


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
