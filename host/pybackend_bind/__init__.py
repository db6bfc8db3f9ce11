"""Serves functions of a Python program as models, by the names of the package ``pytriton``.

``Triton`` starts a server beside the program. Functions stay in the program, with their weights: each instance is a
thread of it, and towards the server an unconfined stub on the ordinary wire. The server knows them by a socket, and
imports nothing of this package.
"""

from pybackend_bind import client, model_config, triton
from pybackend_bind.decorators import (
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from pybackend_bind.exceptions import RequestError
from pybackend_bind.model_config import DeviceKind, DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction
from pybackend_bind.triton import Triton, TritonConfig, TritonSecurityConfig

__all__ = [
    "DeviceKind", "DynamicBatcher", "ModelConfig", "QueuePolicy", "RequestError", "Tensor", "TimeoutAction", "Triton", "TritonConfig",
    "TritonSecurityConfig",
    "batch", "client", "fill_optionals", "first_value", "group_by_keys", "group_by_values", "model_config", "pad_batch", "sample",
    "triton", "triton_context",
]  # fmt: skip
