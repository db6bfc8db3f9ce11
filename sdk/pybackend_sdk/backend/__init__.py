"""What backends share that serve models without code: the model's file, its tensors, parameters, threads and batches.

A Python-based backend is an ordinary ``model.py``. These functions are for its three methods:

* ``auto_complete_config``: :func:`model_path`, :class:`Signature`, :func:`complete_config`;
* ``initialize``: :func:`require`, :func:`read_parameters`, :func:`check_config`, :func:`threads_per_instance`;
* ``execute``: :func:`execute_batch`, or :func:`offer` for streams.

Every error is a ``TritonModelException`` of one sentence that names the model, the file and the way out.
"""

from pybackend_sdk.backend.batching import Form, execute_batch, offer
from pybackend_sdk.backend.model_file import model_path, require
from pybackend_sdk.backend.parameters import Ignored, boolean, choice, number, read_parameters, text, whole_number
from pybackend_sdk.backend.resources import (
    cores,
    instance_count,
    keep_freed_memory,
    memory_advice,
    threads_per_instance,
)
from pybackend_sdk.backend.signature import Signature, TensorInfo, check_config, complete_config, model_tensors

__all__ = [
    "Form",
    "Ignored",
    "Signature",
    "TensorInfo",
    "boolean",
    "check_config",
    "choice",
    "complete_config",
    "cores",
    "execute_batch",
    "instance_count",
    "keep_freed_memory",
    "memory_advice",
    "model_path",
    "model_tensors",
    "number",
    "offer",
    "read_parameters",
    "require",
    "text",
    "threads_per_instance",
    "whole_number",
]
