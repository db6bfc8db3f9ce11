"""Outputs held against the configuration, for models that ask for it: a wrong datatype or shape becomes an error."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.errors import InferenceError
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.signature import ModelSignature


def output_error(outputs: Sequence[OutputTensor], signature: ModelSignature, batch_size: int) -> InferenceError | None:
    """What is wrong with a response's outputs, None if they are as configured.

    Args:
        outputs: in the shapes that clients see.
        signature: of the model.
        batch_size: of the request; every output of a batching model has as many items.
    """
    for output in outputs:
        expected = signature.outputs.get(output.name)
        if expected is None:
            return InferenceError(
                f"model '{signature.model_name}' returned output '{output.name}', which its configuration does not have"
            )
        if output.datatype != expected.datatype:
            return InferenceError(
                f"model '{signature.model_name}' returned output '{output.name}' as {output.datatype}, but its "
                f"configuration says {expected.datatype}"
            )
        dims = ((batch_size, *expected.dims) if signature.max_batch_size else expected.dims) or (1,)
        shape = tuple(output.shape) or (1,)
        if len(shape) != len(dims) or any(dim not in {-1, size} for dim, size in zip(dims, shape, strict=True)):
            return InferenceError(
                f"model '{signature.model_name}' returned output '{output.name}' with shape {list(output.shape)}, but its "
                f"configuration says {list(dims)}"
            )
    return None
