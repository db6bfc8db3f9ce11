"""Builds an ensemble's response from its outputs, in the memory in which the steps left them."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.ensemble.scope import EnsembleTensor, Scope
from pybackend.ensemble.sequence import correlation_parameters
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.signature import ModelSignature


def add_outputs(response: InferenceResponse, scope: Scope, wanted: Sequence[str], signature: ModelSignature) -> None:
    """Add the wanted outputs that were produced to a response; their memory is kept until the response is released."""
    found = [(name, tensor) for name in wanted if (tensor := scope.find(name)) is not None]
    tensors = [tensor for _, tensor in found]
    for tensor in tensors:
        tensor.memory.borrow()
    for tensor in tensors:
        if tensor.chain == scope.chain:
            tensor.memory.used()

    def on_release() -> None:
        for tensor in tensors:
            tensor.memory.give_back()

    named = next((tensor.correlation for tensor in tensors if tensor.correlation is not None), None)
    outputs = [_output(name, tensor, signature) for name, tensor in found]
    response.outputs, response.on_release = outputs, on_release
    response.parameters = None if named is None else correlation_parameters(named)


def _output(name: str, tensor: EnsembleTensor, signature: ModelSignature) -> OutputTensor:
    expected = signature.outputs[name]
    dims = expected.dims if expected.reshape is None else expected.reshape
    shape = tensor.shape_for(dims, batched=signature.max_batch_size > 0)
    return OutputTensor(name, tensor.datatype, signature.shape_for_client(expected, shape), tensor.data)
