"""What a request's JSON part says about the bytes that follow it and about the form of the reply.

Where: made by ``infer_request``; the front end then brings the binary tensors' bytes, small ones with
:func:`attach_blobs`, large ones straight into shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import InputTensor
from pybackend.protocol.classification import ClassRequest

SMALL_BYTES = 4096
"""Up to here a private copy costs less than keeping a view of somebody else's memory alive."""


class OutputFormat:
    """Which outputs the client wants as binary tensors; the others are sent as JSON. Immutable.

    Attributes:
        binary_default: the form of outputs that ``overrides`` does not name.
        overrides: form by output name, True for binary.
        classes: by name, the outputs of which the client wants classes and not the tensor; None if there are none.
    """

    __slots__ = ("binary_default", "classes", "overrides")

    def __init__(
        self,
        *,
        binary_default: bool,
        overrides: Mapping[str, bool] | None = None,
        classes: Mapping[str, ClassRequest] | None = None,
    ) -> None:
        self.binary_default = binary_default
        self.overrides = overrides
        self.classes = classes

    def is_binary(self, name: str) -> bool:
        """True if this output is to be appended as raw bytes."""
        if self.overrides is None:
            return self.binary_default
        return self.overrides.get(name, self.binary_default)


ALL_JSON = OutputFormat(binary_default=False)
ALL_BINARY = OutputFormat(binary_default=True)


def output_format(
    forms: Mapping[str, bool], binary_default: bool, classes: Mapping[str, ClassRequest] | None = None
) -> OutputFormat:
    """The format for a request.

    Args:
        forms: True for binary, by the name of each output that the client requested; empty if it named none.
        binary_default: the form of outputs that were not named.
        classes: the outputs of which it wants classes.
    """
    if classes:
        return OutputFormat(binary_default=binary_default, overrides=forms, classes=classes)
    wanted = set(forms.values()) or {binary_default}
    if len(wanted) == 1:
        return ALL_BINARY if True in wanted else ALL_JSON
    return OutputFormat(binary_default=binary_default, overrides=forms)


class InferPlan:
    """A parsed request whose binary tensors have not arrived yet.

    Attributes:
        request: inputs in the client's order. Those sent as JSON have their wire bytes; binary ones have none yet.
        binary_inputs: the binary inputs, in the order of their bytes, with the number of bytes each announced.
        binary_bytes: the sum of the announced bytes.
        output_format: the form in which the client wants the outputs.
    """

    __slots__ = ("binary_bytes", "binary_inputs", "output_format", "request")

    def __init__(
        self,
        request: InferenceRequest,
        binary_inputs: list[tuple[InputTensor, int]],
        binary_bytes: int,
        output_format: OutputFormat,
    ) -> None:
        self.request = request
        self.binary_inputs = binary_inputs
        self.binary_bytes = binary_bytes
        self.output_format = output_format


def check_body_size(plan: InferPlan, available_bytes: int) -> None:
    """Hold the bytes that follow the JSON part against what the inputs announced.

    Args:
        plan: what was announced.
        available_bytes: body bytes after the JSON part.

    Raises:
        InferenceError: INVALID_ARG, if there are too few bytes or bytes that no input asked for.
    """
    if plan.binary_bytes != available_bytes:
        raise body_size_error(plan.binary_inputs, available_bytes, plan.request.model_name)


def body_size_error(
    binary_inputs: Sequence[tuple[InputTensor, int]], available_bytes: int, model_name: str
) -> InferenceError:
    """Why these inputs and so many bytes do not fit each other: the first input cut short, or bytes left over."""
    left = available_bytes
    for tensor, size in binary_inputs:
        if size > left:
            return InferenceError(
                f"unexpected size for input '{tensor.name}', expecting {size - left} additional bytes for model "
                f"'{model_name}'",
                ErrorCode.INVALID_ARG,
            )
        left -= size
    return InferenceError(f"unexpected additional input data for model '{model_name}'", ErrorCode.INVALID_ARG)


def attach_blobs(plan: InferPlan, blob: bytes | memoryview, offset: int = 0) -> None:
    """Give the binary inputs their bytes out of a body that has arrived.

    Inputs above 4 KB become views of ``blob``, smaller ones private copies.

    Args:
        plan: a plan that passed :func:`check_body_size`.
        blob: the body, or its binary part.
        offset: where in ``blob`` the first binary tensor begins.
    """
    view = None
    for tensor, size in plan.binary_inputs:
        end = offset + size
        if size <= SMALL_BYTES:
            tensor.data = bytes(blob[offset:end])
        else:
            if view is None:
                view = memoryview(blob)
            tensor.data = view[offset:end]
        offset = end
