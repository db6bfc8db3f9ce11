"""Reshapes outputs to the form that clients expect, and validates them if the model enables that."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.errors import InferenceError
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.signature import ModelSignature


class OutputForm:
    """Gives one version's responses the form that clients expect.

    Args:
        signature: the version's signature.
        hidden: names of outputs that clients never see; these are not validated.
        validates: True to validate outputs against the signature; a wrong output turns the response into an error.
    """

    def __init__(self, signature: ModelSignature, hidden: frozenset[str], *, validates: bool) -> None:
        self._signature = signature
        self._hidden = hidden
        self._validates = validates

    def give_to(self, response: InferenceResponse, batch_size: int) -> None:
        """Reshape a response's outputs, and validate them.

        Args:
            response: as the model returned it.
            batch_size: of the request.
        """
        if self._signature.has_reshape:
            self._reshape(response)
        if self._validates and response.error is None:
            outputs = [output for output in response.outputs if output.name not in self._hidden]
            response.error = output_error(outputs, self._signature, batch_size)
            if response.error is not None:
                response.release()

    def _reshape(self, response: InferenceResponse) -> None:
        for output in response.outputs:
            tensor = self._signature.outputs.get(output.name)
            if tensor is not None:
                output.shape = self._signature.shape_for_client(tensor, output.shape)


def output_form(signature: ModelSignature, hidden: frozenset[str], *, validates: bool) -> OutputForm | None:
    """The output form of a version, None if outputs are sent exactly as returned; see :class:`OutputForm`."""
    return OutputForm(signature, hidden, validates=validates) if validates or signature.has_reshape else None


def output_error(outputs: Sequence[OutputTensor], signature: ModelSignature, batch_size: int) -> InferenceError | None:
    """The first mismatch between a response's outputs and the configuration, None if they match.

    Args:
        outputs: with shapes in client form.
        signature: of the model.
        batch_size: of the request; the first dimension of every output of a batching model.
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
