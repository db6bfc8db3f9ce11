"""Decides which requests may share a batch: their shapes must agree where the model requires it."""

from __future__ import annotations

from collections.abc import Callable

from pybackend.inference.request import InferenceRequest
from pybackend.modelconfig.schema import ModelConfig


def shape_key_of(config: ModelConfig) -> Callable[[InferenceRequest], object] | None:
    """A function that returns equal keys for requests that may share a batch; None if all may.

    Inputs with variable shapes must agree unless ``allow_ragged_batch`` is set. If inputs are optional, requests that
    share a batch must have the same inputs.
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
