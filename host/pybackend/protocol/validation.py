"""A request held against its model's signature: names, counts, datatypes, shapes, sizes.

Where: between codec and engine, for every front end and for calls between models. What needs no tensor bytes comes
first (:func:`validate_header`), so that a large body is refused before it is received; BYTES tensors are walked
(:func:`validate_bytes_tensors`) once they have arrived. Names within a request are distinct: codecs see to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from struct import Struct

import numpy as np

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.protocol.limits import element_count, shape_text
from pybackend_wire.bytes_tensor import LENGTH_BYTES
from pybackend_wire.dtypes import ITEMSIZE
from pybackend_wire.short_elements import element_starts

_LENGTH = Struct("<I")
_UNIFORM_COUNT = 64  # from here on, looking for elements of one length pays

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try "
    "setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_NO_BATCH_NOTE = "NOTE: max_batch_size is zero in the model config, so input shapes have no batch dimension."


def request_prefix(request_id: str) -> str:
    """What messages about a request begin with: ``[request id: <id>] ``."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def validate(request: InferenceRequest, signature: ModelSignature) -> None:
    """Everything at once, for a request whose inputs have their bytes; sets ``batch_size``.

    Raises:
        InferenceError: INVALID_ARG, the first thing that does not fit the model.
    """
    validate_header(request, signature)
    validate_bytes_tensors(request, signature)


def validate_header(
    request: InferenceRequest, signature: ModelSignature, announced: Iterable[tuple[InputTensor, int]] = ()
) -> None:
    """Check what needs no tensor bytes, and set ``batch_size``.

    Args:
        request: inputs may be without data.
        signature: the model's.
        announced: the inputs without data, in order, with the number of bytes that are to come.

    Raises:
        InferenceError: INVALID_ARG, the first thing that does not fit the model.
    """
    for name in request.requested_outputs:
        if name not in signature.outputs:
            raise _invalid(f"unexpected inference output '{name}' for model '{signature.model_name}'")
    count = len(request.inputs)
    if count > len(signature.inputs) or count < signature.required_input_count:
        raise _input_count_error(request, signature)
    if signature.max_batch_size:
        request.batch_size = _batch_size(request, signature) or 1
    sizes = iter(announced)
    for tensor in request.inputs:
        expected = signature.inputs.get(tensor.name)
        if expected is None:
            raise _invalid(f"unexpected inference input '{tensor.name}' for model '{signature.model_name}'")
        if tensor.datatype != expected.datatype:
            raise _refusal(
                request,
                f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but model "
                f"'{signature.model_name}' expects '{expected.datatype}'",
            )
        dims = tuple(tensor.shape[1:] if signature.max_batch_size else tensor.shape)
        if dims != expected.dims or -1 in dims:
            _check_dims(request, tensor, dims, expected, signature)
        data = tensor.data
        size = next(sizes)[1] if data is None else len(data)
        itemsize = ITEMSIZE[tensor.datatype]
        if itemsize and size != prod(tensor.shape) * itemsize:
            raise _byte_size_error(request, tensor, size, signature)
    if count != len(signature.inputs) and _missing_inputs(request, signature):
        raise _input_count_error(request, signature)


def _missing_inputs(request: InferenceRequest, signature: ModelSignature) -> list[str]:
    given = {tensor.name for tensor in request.inputs}
    return [name for name, tensor in signature.inputs.items() if not tensor.optional and name not in given]


def _input_count_error(request: InferenceRequest, signature: ModelSignature) -> InferenceError:
    most, least = len(signature.inputs), signature.required_input_count
    expected = f"{most} inputs" if most == least else f"number of inputs between {least} and {most}"
    got = _name_list([tensor.name for tensor in request.inputs])
    missing = _name_list(_missing_inputs(request, signature))
    return _refusal(
        request,
        f"expected {expected} but got {len(request.inputs)} inputs for model '{signature.model_name}'. Got input(s) "
        f"{got}, but missing required input(s) {missing}. Please provide all required input(s).",
    )


def _name_list(names: Sequence[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _batch_size(request: InferenceRequest, signature: ModelSignature) -> int:
    """The first dimension that all inputs share; 0 if there are no inputs."""
    batch_size: int | None = None
    for tensor in request.inputs:
        if not tensor.shape:
            raise _refusal(
                request,
                f"input '{tensor.name}' has no shape but model requires batch dimension for '{signature.model_name}'",
            )
        if batch_size is None:
            batch_size = tensor.shape[0]
        elif tensor.shape[0] != batch_size:
            raise _refusal(
                request, f"input '{tensor.name}' batch size does not match other inputs for '{signature.model_name}'"
            )
    if batch_size is None:
        return 0
    if batch_size < 0:
        raise _unspecified_error(request, request.inputs[0], signature)
    if batch_size > signature.max_batch_size:
        raise _refusal(
            request,
            f"inference request batch-size must be <= {signature.max_batch_size} for '{signature.model_name}'",
        )
    return batch_size


def _check_dims(
    request: InferenceRequest,
    tensor: InputTensor,
    dims: tuple[int, ...],
    expected: TensorSignature,
    signature: ModelSignature,
) -> None:
    """Compare dimension by dimension: -1 in the configuration takes any size, in a request none."""
    if len(dims) == len(expected.dims):
        if min(tensor.shape) < 0:
            raise _unspecified_error(request, tensor, signature)
        if all(want in (-1, dim) for want, dim in zip(expected.dims, dims, strict=True)):
            return
    batching = signature.max_batch_size > 0
    full_dims = (-1, *expected.dims) if batching else expected.dims
    raise _refusal(
        request,
        f"unexpected shape for input '{tensor.name}' for model '{signature.model_name}'. Expected "
        f"{shape_text(full_dims)}, got {shape_text(tensor.shape)}. {_BATCH_NOTE if batching else _NO_BATCH_NOTE}",
    )


def _unspecified_error(request: InferenceRequest, tensor: InputTensor, signature: ModelSignature) -> InferenceError:
    return _refusal(
        request,
        f"All input dimensions should be specified for input '{tensor.name}' for model '{signature.model_name}', got "
        f"{shape_text(tensor.shape)}",
    )


def _byte_size_error(
    request: InferenceRequest, tensor: InputTensor, size_bytes: int, signature: ModelSignature
) -> InferenceError:
    wanted = element_count(tensor.name, tensor.datatype, tensor.shape) * ITEMSIZE[tensor.datatype]
    return _refusal(
        request,
        f"input byte size mismatch for input '{tensor.name}' for model '{signature.model_name}'. Expected {wanted}, "
        f"got {size_bytes}",
    )


def validate_bytes_tensors(request: InferenceRequest, signature: ModelSignature) -> None:
    """Walk the length fields of BYTES inputs: as many elements as the shape says, and none cut short.

    Raises:
        InferenceError: INVALID_ARG, the first input that does not fit.
    """
    for tensor in request.inputs:
        if tensor.datatype == "BYTES" and tensor.data is not None:
            _check_elements(request, tensor, tensor.data, signature.model_name)


def _check_elements(request: InferenceRequest, tensor: InputTensor, data: Buffer, model_name: str) -> None:
    wanted = prod(tensor.shape)
    size = len(data)
    if _is_uniform(data, size, wanted):
        return
    starts = element_starts(data)
    if starts is not None and len(starts) == wanted:
        return
    about = f"for inference input '{tensor.name}' for model '{model_name}'"
    unpack = _LENGTH.unpack_from
    offset = found = 0
    while offset < size:
        if size - offset < LENGTH_BYTES:
            raise _refusal(
                request,
                f"incomplete string length indicator {about}, expecting {LENGTH_BYTES} bytes but only "
                f"{size - offset} bytes available. Please make sure the string length indicator is in one buffer.",
            )
        found += 1
        if found > wanted:
            raise _refusal(request, f"unexpected number of string elements {found} {about}, expecting {wanted}")
        length = unpack(data, offset)[0]
        offset += LENGTH_BYTES + length
        if offset > size:
            raise _refusal(
                request,
                f"incomplete string data {about}, expecting string of length {length} but only "
                f"{size - offset + length} bytes available.",
            )
    if found != wanted:
        raise _refusal(request, f"expected {wanted} string elements {about}, got {found}")


def _is_uniform(data: Buffer, size: int, count: int) -> bool:
    """True if these are ``count`` elements of one length; numpy sees it 50 times faster than a loop."""
    if count < _UNIFORM_COUNT or size % count or size // count < LENGTH_BYTES:
        return False
    stride = size // count
    lengths = np.ndarray((count,), dtype="<u4", buffer=data, strides=(stride,))
    return bool((lengths == stride - LENGTH_BYTES).all())


def _refusal(request: InferenceRequest, message: str) -> InferenceError:
    return _invalid(request_prefix(request.id) + message)


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, ErrorCode.INVALID_ARG)
