"""Which requests may share a batch: each keeps its own tensors, but their shapes must agree where the model says so."""

from __future__ import annotations

from collections.abc import Callable

from pybackend.inference.request import InferenceRequest
from pybackend.modelconfig.schema import ModelConfig


def shape_key_of(config: ModelConfig) -> Callable[[InferenceRequest], object] | None:
    """A function of requests that is equal for those which may share a batch; None if all may.

    Inputs of a variable shape must agree unless ``allow_ragged_batch`` is set. Where inputs are optional, all requests
    must give the same ones.
    """
    compared = {tensor.name for tensor in config.inputs if -1 in tensor.dims and not tensor.allow_ragged_batch}
    if any(tensor.optional for tensor in config.inputs):
        return lambda request: frozenset(
            (tensor.name, tuple(tensor.shape[1:]) if tensor.name in compared else ()) for tensor in request.inputs
        )
    if not compared:
        return None
    return lambda request: frozenset(
        (tensor.name, tuple(tensor.shape[1:])) for tensor in request.inputs if tensor.name in compared
    )
