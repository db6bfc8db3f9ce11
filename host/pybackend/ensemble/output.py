"""Builds an ensemble's response from its outputs, in the memory in which the steps left them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pybackend.ensemble.scope import EnsembleTensor, Memory
from pybackend.ensemble.sequence import Correlation, correlation_parameters
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.ensemble import Chain
from pybackend.modelconfig.signature import ModelSignature


def add_outputs(
    response: InferenceResponse, found: Sequence[tuple[str, EnsembleTensor]], chain: Chain, signature: ModelSignature
) -> None:
    """Add outputs to a response; their memory is kept until the response is released.

    Args:
        response: the ensemble's response.
        found: the outputs by name.
        chain: the streams to whose end the response belongs; only the tensors that came through them are not needed again.
        signature: the ensemble's.
    """
    memories: list[Memory] = []
    named: Correlation | None = None
    batched = signature.max_batch_size > 0
    for name, tensor in found:
        memory = tensor.memory
        if memory is not None:
            memory.borrow()
            memories.append(memory)
            if tensor.chain == chain:
                memory.used()
        if named is None:
            named = tensor.correlation
        shape = tensor.shape
        if tensor.batched != batched or signature.has_reshape:
            shape = _shape(name, tensor, signature)
        response.outputs.append(OutputTensor(name, tensor.datatype, shape, tensor.data))
    if memories:
        response.on_release = partial(_give_back, memories)
    if named is not None:
        response.parameters = correlation_parameters(named)


def _give_back(memories: Sequence[Memory]) -> None:
    for memory in memories:
        memory.give_back()


def _shape(name: str, tensor: EnsembleTensor, signature: ModelSignature) -> Sequence[int]:
    expected = signature.outputs[name]
    dims = expected.dims if expected.reshape is None else expected.reshape
    return signature.shape_for_client(expected, tensor.shape_for(dims, batched=signature.max_batch_size > 0))
