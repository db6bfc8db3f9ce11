"""Inputs and outputs of each task. Needs no weights."""

from typing import Any, List, NamedTuple, Tuple

from pybackend_backends.transformers.checkpoints import Checkpoint, labels_of
from pybackend_backends.transformers.generation import GENERATING
from pybackend_sdk.backend import Signature, TensorInfo


class Interface(NamedTuple):
    """Inputs and outputs of a task, with the batch dimension in front if the task batches.

    Attributes:
        inputs: in the order in which clients see them.
        outputs: likewise.
        batches: whether texts or images of several requests are computed together.
    """

    inputs: List[TensorInfo]
    outputs: List[TensorInfo]
    batches: bool


def interface_of(checkpoint: Checkpoint) -> Interface:
    """Inputs and outputs of a checkpoint's task."""
    if checkpoint.task in GENERATING:
        return _GENERATION
    config = checkpoint.config
    if checkpoint.task == "zero-shot-classification":
        return _ZERO_SHOT
    if checkpoint.task == "text-classification":
        return _batched([_row("text"), _row("text_pair", optional=True)], _classes(config))
    if checkpoint.task == "image-classification":
        return _batched([_row("image")], _classes(config))
    if checkpoint.task == "token-classification":
        return _batched([_row("text")], [_row("entities")])
    return _batched([_row("text")], [_row("embedding", "FP32", int(config.hidden_size))])


def signature_of(interface: Interface) -> Signature:
    """An interface as the signature of a file."""
    return Signature(interface.inputs, interface.outputs, None if interface.batches else 0)


def _row(name: str, datatype: str = "STRING", size: int = 1, *, optional: bool = False) -> TensorInfo:
    return TensorInfo(name, "TYPE_" + datatype, (-1, size), optional)


def _batched(inputs: List[TensorInfo], outputs: List[TensorInfo]) -> Interface:
    return Interface(inputs, outputs, batches=True)


def _classes(config: Any) -> List[TensorInfo]:
    return [_row("label"), _row("score", "FP32"), _row("scores", "FP32", len(labels_of(config)))]


def _flat(name: str, datatype: str, size: int, *, optional: bool = False) -> TensorInfo:
    shape: Tuple[int, ...] = (size,)
    return TensorInfo(name, "TYPE_" + datatype, shape, optional)


_ZERO_SHOT = Interface(
    [
        _flat("text", "STRING", 1),
        _flat("candidate_labels", "STRING", -1),
        _flat("multi_label", "BOOL", 1, optional=True),
    ],
    [_flat("labels", "STRING", -1), _flat("scores", "FP32", -1)],
    batches=False,
)

_GENERATION = Interface(
    [
        _flat("text_input", "STRING", 1),
        _flat("stream", "BOOL", 1, optional=True),
        _flat("sampling_parameters", "STRING", 1, optional=True),
        _flat("exclude_input_in_output", "BOOL", 1, optional=True),
        _flat("return_finish_reason", "BOOL", 1, optional=True),
        _flat("return_num_input_tokens", "BOOL", 1, optional=True),
        _flat("return_num_output_tokens", "BOOL", 1, optional=True),
    ],
    [
        _flat("text_output", "STRING", -1),
        _flat("finish_reason", "STRING", -1),
        _flat("num_input_tokens", "UINT32", -1),
        _flat("num_output_tokens", "UINT32", -1),
    ],
    batches=False,
)
"""As of Triton's vLLM backend, without images and log probabilities."""
