"""Size limits for the parts of a request.

Codecs check them before they allocate memory for a size chosen by a client.
"""

from __future__ import annotations

from dataclasses import dataclass

from pybackend.errors import invalid

INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1

MOST_DIMS = 64
"""Dimensions of a shape: numpy's maximum."""

_FLAG_ADVICE = "Use --http-max-input-size to increase the limit."


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on a request body. Binary tensors are not limited here: the model's shapes limit them.

    Every method raises InferenceError, INVALID_ARG, for a size above the limit.

    Attributes:
        max_input_size_bytes: the maximum size in bytes of a JSON document, one tensor sent as JSON, a raw body or a
            decompressed body may have.
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
