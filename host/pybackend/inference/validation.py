"""Validates a request against its model's signature: names, counts, datatypes, shapes, sizes.

Used between codec and engine by every front end, and for calls between models. Checks that need no tensor bytes run
first (:func:`validate_header`), so that a large invalid body is refused before it is received; BYTES tensors are walked
(:func:`validate_bytes_tensors`) once they have arrived. Codecs guarantee that names within a request are distinct.
"""

import struct
from collections.abc import Generator, Iterable, Mapping
from enum import IntEnum
from math import prod

from pybackend.errors import InferenceError, invalid
from pybackend.inference.region import source_of
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import Buffer, InputTensor, element_count, shape_text
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend_wire.bytes_tensor import LENGTH_BYTES, element_problem
from pybackend_wire.dtypes import ITEMSIZE, conversion

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try "
    "setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_NO_BATCH_NOTE = "NOTE: max_batch_size is zero in the model config, so input shapes have no batch dimension."

_length_at = struct.Struct("<I").unpack_from

_MOST_COUNTED = 64
"""Of elements: numpy is faster with more of them."""


class Checked(IntEnum):
    """The validation that a request has passed so far."""

    NOTHING = 0
    HEADER = 1
    """It has passed :func:`validate_header`."""
    ALL = 2
    """It has also passed :func:`validate_bytes_tensors`."""


def validate(request: InferenceRequest, signature: ModelSignature) -> None:
    """Run all checks on a request whose inputs have their bytes; sets ``batch_size``."""
    validate_header(request, signature)
    validate_bytes_tensors(request, signature)


def validate_header(
    request: InferenceRequest, signature: ModelSignature, announced: Iterable[tuple[InputTensor, int]] = ()
) -> Checked:
    """Run the checks that need no tensor bytes, and set ``batch_size``.

    ``announced`` are the inputs without data, in order, with the number of bytes still to arrive. Returns what has
    been checked now: everything, unless there are BYTES tensors.
    """
    for name in request.requested_outputs:
        if name not in signature.outputs:
            raise invalid(
                f"unexpected inference output '{name}' for model '{signature.model_name}'. "
                f"{_known('outputs', signature.outputs)}"
            )
    count = len(request.inputs)
    if count > len(signature.inputs) or count < signature.required_input_count:
        raise _input_count_error(request, signature)
    if signature.max_batch_size:
        request.batch_size = _batch_size(request, signature) or 1
    sizes = iter(announced)
    checked = Checked.ALL
    for tensor in request.inputs:
        expected = signature.inputs.get(tensor.name)
        if expected is None:
            raise invalid(
                f"unexpected inference input '{tensor.name}' for model '{signature.model_name}'. "
                f"{_known('inputs', signature.inputs)}"
            )
        if tensor.datatype != expected.datatype:
            raise _refusal(
                request,
                f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but model "
                f"'{signature.model_name}' expects '{expected.datatype}'{conversion(expected.datatype)}",
            )
        dims = tuple(tensor.shape[1:] if signature.max_batch_size else tensor.shape)
        if dims != expected.dims or -1 in dims:
            _check_dims(request, tensor, dims, expected, signature)
        data = tensor.data
        size = next(sizes)[1] if data is None else len(data)
        itemsize = ITEMSIZE[tensor.datatype]
        if not itemsize:
            checked = Checked.HEADER
        elif size != prod(tensor.shape) * itemsize:
            raise byte_size_error(request, tensor, size, signature.model_name)
    if count != len(signature.inputs) and _missing_inputs(request, signature):
        raise _input_count_error(request, signature)
    return checked


def _missing_inputs(request: InferenceRequest, signature: ModelSignature) -> list[str]:
    given = {tensor.name for tensor in request.inputs}
    return [name for name, tensor in signature.inputs.items() if not tensor.optional and name not in given]


def _input_count_error(request: InferenceRequest, signature: ModelSignature) -> InferenceError:
    most, least = len(signature.inputs), signature.required_input_count
    expected = f"{most} inputs" if most == least else f"number of inputs between {least} and {most}"
    got = _name_list([tensor.name for tensor in request.inputs])
    missing = _name_list(_missing_inputs(request, signature))
    unknown = [tensor.name for tensor in request.inputs if tensor.name not in signature.inputs]
    advice = f" The model has no input(s) {_name_list(unknown)}." if unknown else ""
    return _refusal(
        request,
        f"expected {expected} but got {len(request.inputs)} inputs for model '{signature.model_name}'. Got input(s) "
        f"{got}, but missing required input(s) {missing}. Please provide all required input(s).{advice}",
    )


def _known(what: str, tensors: Mapping[str, TensorSignature]) -> str:
    return f"Its {what} are {_name_list(tensors)}" if tensors else f"It has no {what}"


def _name_list(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _batch_size(request: InferenceRequest, signature: ModelSignature) -> int:
    """The first dimension, common to all inputs; 0 if there are no inputs."""
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
    """Compare dimension by dimension: -1 in the configuration accepts any size; -1 in a request is an error."""
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


def byte_size_error(request: InferenceRequest, tensor: InputTensor, size_bytes: int, model_name: str) -> InferenceError:
    """The error for an input that has another size than its shape and datatype make."""
    wanted = element_count(tensor.name, tensor.datatype, tensor.shape) * ITEMSIZE[tensor.datatype]
    return _refusal(
        request,
        f"input byte size mismatch for input '{tensor.name}' for model '{model_name}'. Expected {wanted}, "
        f"got {size_bytes}{'' if size_bytes else '. No bytes were sent for it: is the body of the request missing?'}",
    )


def validate_bytes_tensors(request: InferenceRequest, signature: ModelSignature) -> None:
    """Walk the length fields of BYTES inputs: their number must match the shape, and no element may be truncated.

    The stub does that with the ones that lie in clients' regions. The last of several invalid inputs is described, as
    by the reference.
    """
    for _ in validate_bytes_in_steps(request, signature):
        pass


def has_whole_elements(request: InferenceRequest) -> bool:
    """True if the inputs' bytes fit their shapes and datatypes; False if they do not, or if there are many strings."""
    for tensor in request.inputs:
        data, count, at = tensor.data, prod(tensor.shape), 0
        if data is None:
            return False
        if tensor.datatype == "BYTES":
            if count > _MOST_COUNTED:
                return False
            try:
                for _ in range(count):
                    at += LENGTH_BYTES + _length_at(data, at)[0]
            except struct.error:
                return False
        else:
            at = count * ITEMSIZE[tensor.datatype]
        if at != len(data):
            return False
    return True


def validate_bytes_in_steps(request: InferenceRequest, signature: ModelSignature) -> Generator[None, None, None]:
    """Like :func:`validate_bytes_tensors`, in steps of a few milliseconds."""
    for tensor in reversed(request.inputs):
        if tensor.datatype == "BYTES" and tensor.data is not None and source_of(tensor) is None:
            yield from _check_elements(request, tensor, tensor.data, signature.model_name)


def _check_elements(
    request: InferenceRequest, tensor: InputTensor, data: Buffer, model_name: str
) -> Generator[None, None, None]:
    about = f"for inference input '{tensor.name}' for model '{model_name}'"
    problem = yield from element_problem(data, prod(tensor.shape), about)
    if problem:
        raise _refusal(request, problem)


def _refusal(request: InferenceRequest, message: str) -> InferenceError:
    return invalid(request.prefix + message)
