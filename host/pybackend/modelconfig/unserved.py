"""Configuration features that this release does not support: refused by name, or ignored with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig
from pybackend.spelling import closest
from pybackend_wire.model_options import OPTION_NAMES

CHECKSUM = "checksum"
"""The repository agent that compares files with digests."""

_QUEUEING = {"priority_levels", "default_queue_policy", "priority_queue_policy", "preserve_ordering"}
"""Parts of ``dynamic_batching`` that concern the queue, which single requests have too."""

_PARAMETER_SIMILARITY = 0.85
"""Models may have parameters of any name: only slips of the pen are worth a warning."""


def refuse_unserved(config: ModelConfig) -> None:
    """Refuse a model that would fail or give wrong answers without an unsupported feature.

    Raises:
        ModelConfigError: UNSUPPORTED; names the field and the way out.
    """
    for field, advice in _refused(config):
        raise ModelConfigError(
            f"model '{config.name}' asks for {field}, which this release does not support: {advice} ({config.source})",
            ErrorCode.UNSUPPORTED,
        )


def unserved_warnings(config: ModelConfig) -> tuple[str, ...]:
    """One sentence for each part of ``config`` that has no effect, and for each kind of tensor that it leaves out."""
    return tuple(f"model '{config.name}': {text} ({config.source})" for text in _ignored(config))


def _refused(config: ModelConfig) -> list[tuple[str, str]]:
    agents = config.document.get("model_repository_agents", {}).get("agents", ())
    others = dict.fromkeys(agent["name"] for agent in agents if agent["name"] != CHECKSUM)
    return [(f"the repository agent '{name}'", f"the only agent is '{CHECKSUM}'") for name in others]


def _ignored(config: ModelConfig) -> list[str]:
    ignored = []
    batching = config.document.get("dynamic_batching")
    if batching is not None and config.max_batch_size == 0 and not _QUEUEING.intersection(_given(batching)):
        ignored.append(
            "dynamic_batching has no effect, because max_batch_size is 0: write max_batch_size: 8 (every input and output "
            "then has a batch dimension in front of its dims), or remove dynamic_batching"
        )
    for key in config.parameters:
        near = closest(key, OPTION_NAMES, _PARAMETER_SIMILARITY)
        if near and near != key:
            ignored.append(
                f"parameters {key} is no option of this server and reaches the model only: did you mean {near}?"
            )
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        ignored.append("parameters TRITON_BATCH_STRATEGY_PATH names a custom batching library, which is not loaded")
    ignored += [
        f"it has no {field}s. If that is a mistake, add an {field} block to config.pbtxt, or add_{field}() in the "
        "model's auto_complete_config"
        for field, tensors in (("input", config.inputs), ("output", config.outputs))
        if not tensors
    ]
    return ignored


def _given(block: Mapping[str, Any]) -> set[str]:
    """The fields of a block that are not at their default."""
    return {name for name, value in block.items() if value}
