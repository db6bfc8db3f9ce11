"""Completes a configuration from a model's file, so that config.pbtxt may be short or missing."""

from typing import Any, Dict, Optional, Sequence

from pybackend_sdk.backend.signature import Signature, TensorInfo, check_config, configured_shape
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.runtime import current_runtime

_BATCH_SIZE_SETTING, _DEFAULT_BATCH_SIZE = "default-max-batch-size", 4
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def complete_config(
    config: ModelConfig, signature: Signature, path: str, *, batch_size: int = _DEFAULT_BATCH_SIZE
) -> ModelConfig:
    """Fill in what a configuration leaves out, and compare the rest with the model's file.

    A model whose tensors all begin with a dimension of any size gets ``max_batch_size``
    (``--backend-config=default-max-batch-size=N``, else ``batch_size``) and, if that is more than 1 and no scheduler is
    configured, dynamic batching. It does not if the configuration writes that dimension out.

    Args:
        config: the argument of ``auto_complete_config``.
        signature: of the file.
        path: of the file, for messages.
        batch_size: what is usual for such models, 1 or more.

    Returns:
        The same object.

    Raises:
        TritonModelException: the configuration contradicts the file.
    """
    document = config.as_dict()
    document.setdefault("max_batch_size", 0)
    inputs, outputs = document.setdefault("input", []), document.setdefault("output", [])
    if document["max_batch_size"] == 0 and signature.can_batch and _leaves_batching_open(document, signature):
        _set_batching(config, document, signature.most_rows, batch_size)
    batches = document["max_batch_size"] > 0
    _complete(inputs, signature.inputs, batches)
    _complete(outputs, signature.outputs, batches)
    check_config(document, signature, path)
    return config


def _leaves_batching_open(document: Dict[str, Any], signature: Signature) -> bool:
    """Whether no configured tensor has as many dimensions as in the file, where the first one is the batch's."""
    shapes = {tensor.name: tensor.shape for tensor in (*signature.inputs, *signature.outputs)}
    return not any(
        tensor.get("dims") and len(configured_shape(document, tensor)) >= len(shapes.get(tensor["name"]) or ())
        for tensor in (*document["input"], *document["output"])
    )


def _set_batching(config: ModelConfig, document: Dict[str, Any], most_rows: Optional[int], usual: int) -> None:
    size = int(current_runtime().backend_settings.get(_BATCH_SIZE_SETTING, usual))
    if most_rows is not None:
        size = min(size, most_rows)
    config.set_max_batch_size(size)
    if size > 1 and not any(document.get(scheduler) is not None for scheduler in _SCHEDULERS):
        config.set_dynamic_batching()


def _complete(configured: Any, stated: Sequence[TensorInfo], batches: bool) -> None:
    if not configured:
        configured.extend({"name": tensor.name} for tensor in stated)
        for entry, tensor in zip(configured, stated):
            if tensor.optional:
                entry["optional"] = True
    by_name = {tensor.name: tensor for tensor in stated}
    for entry in configured:
        found = by_name.get(entry["name"])
        if found is None:
            continue  # the check that follows says so
        if entry.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
            entry["data_type"] = found.data_type
        if not entry.get("dims"):
            if found.shape is None:
                raise TritonModelException(
                    f"the file does not state the shape of '{found.name}': write its dims into config.pbtxt"
                )
            dims = list(found.shape[1:] if batches else found.shape)
            entry["dims"] = dims or [1]
            if not dims and batches:
                entry["reshape"] = {"shape": []}
