"""Checks the outputs of a model under test against its configuration. A server sends them as they are; a test fails."""

from typing import List, Sequence

from pybackend_sdk.tensor import Tensor
from pybackend_sdk.testing.inputs import shape_problem
from pybackend_sdk.testing.signature import Signature, TensorSpec, listed, nearest
from pybackend_wire.dtypes import DATATYPES


def output_problems(
    signature: Signature,
    outputs: "Sequence[Tensor]",
    unknown: "Sequence[str]",
    requested: "Sequence[str]",
    batch_size: int,
) -> List[str]:
    """Describe the faults of a response, one sentence each.

    Args:
        signature: the model's.
        outputs: the requested ones, in the shapes that clients receive.
        unknown: names of outputs that the configuration does not have.
        requested: names of the requested outputs.
        batch_size: the request's; every output of a batching model must have this many items.
    """
    subject = f"model '{signature.model_name}' returned"
    problems = []
    names = [tensor.name() for tensor in outputs]
    for name in unknown:
        missing = [other for other in signature.outputs if other not in names]
        problems.append(
            f"{subject} output '{name}', which its configuration does not have, so clients never receive it."
            f"{nearest(name, missing or signature.outputs)} Its outputs are {listed(signature.outputs.values())}."
        )
    problems += [
        f"{subject} no output '{name}', although the request wants it; it returned {sorted([*names, *unknown])}."
        for name in requested
        if name not in names
    ]
    for tensor in outputs:
        problems += _tensor_problems(signature, signature.outputs[tensor.name()], tensor, batch_size, subject)
    return problems


def _tensor_problems(
    signature: Signature, spec: TensorSpec, tensor: Tensor, batch_size: int, subject: str
) -> List[str]:
    problems = []
    if tensor._datatype != spec.datatype:
        problems.append(
            f"{subject} output '{spec.name}' as {tensor._datatype}, but its configuration says {spec.datatype}"
            f"{_cast_advice(spec)}."
        )
    expected = spec
    if signature.max_batch_size:
        expected = spec._replace(dims=(batch_size, *spec.dims[1:]))
    shape = tensor.shape()
    scalar = (tuple(shape) or (1,)) == (expected.dims or (1,))
    reason = None if scalar else shape_problem(expected, shape, signature.max_batch_size)
    if reason is not None:
        problems.append(
            f"{subject} output '{spec.name}' with shape {shape}, but its configuration says {list(expected.dims)}. {reason}"
        )
    return problems


def _cast_advice(spec: TensorSpec) -> str:
    numpy_type = DATATYPES[spec.datatype].numpy
    if spec.datatype == "BYTES":
        return ": make it from an array of strings"
    return "" if numpy_type is None else f": make it from array.astype(numpy.{numpy_type})"
