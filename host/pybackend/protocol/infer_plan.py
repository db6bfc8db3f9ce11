"""The content of a request's JSON part: the layout of the bytes that follow it, and the format of the response.

Made by ``json.infer_request`` and ``grpc.request``, and by ``plan_cache`` from earlier ones. The front end then
supplies the binary tensors' bytes, small ones with :func:`attach_blobs`, large ones directly in shared memory.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from pybackend.errors import InferenceError, invalid
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import Checked
from pybackend.protocol.classification import ClassRequest

SMALL_BYTES = 4096
"""Up to this size, a private copy costs less than keeping the memory behind a view alive."""


class OutputFormat(Struct, frozen=True, kw_only=True, eq=False):
    """Which outputs the client wants as binary tensors; all others are sent as JSON. Immutable.

    ``overrides`` tell the format of the outputs that they name, True for binary. ``classes`` are outputs requested as
    classes; None if there are none.
    """

    binary_default: bool
    overrides: Mapping[str, bool] | None = None
    classes: Mapping[str, ClassRequest] | None = None

    def is_binary(self, name: str) -> bool:
        """True if this output is appended as raw bytes."""
        if self.overrides is None:
            return self.binary_default
        return self.overrides.get(name, self.binary_default)


ALL_JSON = OutputFormat(binary_default=False)
ALL_BINARY = OutputFormat(binary_default=True)


def output_format(
    forms: Mapping[str, bool], binary_default: bool, classes: Mapping[str, ClassRequest] | None = None
) -> OutputFormat:
    """The output format for a request.

    ``forms`` are True for binary, by the name of each requested output; empty if the client named none.
    """
    if classes:
        return OutputFormat(binary_default=binary_default, overrides=forms, classes=classes)
    wanted = set(forms.values()) or {binary_default}
    if len(wanted) == 1:
        return ALL_BINARY if True in wanted else ALL_JSON
    return OutputFormat(binary_default=binary_default, overrides=forms)


class InferPlan(Struct, eq=False):
    """A parsed request, and the form in which its client wants the outputs.

    The bytes of ``binary_inputs`` are missing; they come in this order and with these sizes in bytes. If it
    ``wants_empty_final``, the client of a gRPC stream wants a last response even if the model sends none.
    """

    request: InferenceRequest
    binary_inputs: list[tuple[InputTensor, int]]
    binary_bytes: int
    output_format: OutputFormat
    checked: Checked = Checked.NOTHING
    wants_empty_final: bool = False


def request_like(template: InferenceRequest, inputs: list[InputTensor], request_id: str = "") -> InferenceRequest:
    """A request like an earlier one, but for its inputs and its id."""
    return InferenceRequest(
        template.model_name,
        template.model_version,
        request_id,
        inputs,
        template.requested_outputs,
        template.batch_size,
    )


def body_size_error(
    binary_inputs: Sequence[tuple[InputTensor, int]], available_bytes: int, model_name: str
) -> InferenceError:
    """The error for a mismatch of inputs and bytes: the first truncated input, or surplus bytes."""
    left = available_bytes
    for tensor, size in binary_inputs:
        if size > left:
            return invalid(
                f"unexpected size for input '{tensor.name}', expecting {size - left} additional bytes for model "
                f"'{model_name}'"
            )
        left -= size
    return invalid(f"unexpected additional input data for model '{model_name}'")


def attach_blobs(plan: InferPlan, blob: bytes | memoryview, offset: int = 0) -> None:
    """Give the binary inputs their bytes from a complete body.

    Inputs above 4 KB become views of ``blob``, smaller ones private copies; the first one begins at ``offset``.
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
