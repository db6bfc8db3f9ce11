"""Requests without JSON: the whole body is the data of the only input, and the model's signature defines the rest.

Complements ``infer_request``, for bodies with header length 0.
"""

from __future__ import annotations

from math import prod

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.inference.validation import request_prefix
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan
from pybackend.protocol.limits import BodyLimits
from pybackend_wire.bytes_tensor import encode_elements


def parse_raw(
    body: bytes | memoryview, signature: ModelSignature, *, model_version: str, limits: BodyLimits
) -> InferPlan:
    """Make a request from a raw body; every output of the response is binary.

    Args:
        body: the input's bytes; for BYTES the one element without a length.
        signature: of a model with one input.

    Returns:
        A plan whose input has its data: a view of ``body``, except for BYTES. It is not validated.

    Raises:
        InferenceError: INVALID_ARG; the body is too large or the shape cannot be deduced.
    """
    limits.check_raw(len(body))
    if len(signature.inputs) != 1:
        raise _refusal(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(signature.inputs)} inputs in "
            f"'{signature.model_name}' model configuration"
        )
    (expected,) = signature.inputs.values()
    batch = [1] if signature.max_batch_size else []
    shape = batch + _deduce_dims(expected, len(body))
    data: Buffer = encode_elements([bytes(body)]) if expected.datatype == "BYTES" else body
    request = InferenceRequest(
        signature.model_name, model_version, inputs=[InputTensor(expected.name, expected.datatype, shape, data)]
    )
    return InferPlan(request, [], 0, ALL_BINARY)


def _deduce_dims(expected: TensorSignature, size_bytes: int) -> list[int]:
    dims = list(expected.dims)
    variable = dims.count(-1)
    if variable > 1:
        raise _refusal(
            f"The shape of the raw input '{expected.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    if expected.datatype == "BYTES":
        if variable or prod(dims) != 1:
            raise _refusal(f"For BYTE datatype raw input '{expected.name}', the model must have input shape [1]")
    elif variable:
        others = prod(dim for dim in dims if dim != -1) * expected.itemsize
        dims[dims.index(-1)] = size_bytes // others if others else 0
    return dims


def _refusal(message: str) -> InferenceError:
    return InferenceError(request_prefix("") + message, ErrorCode.INVALID_ARG)
