"""Configuration features that this release does not support: refused by name, or ignored with a warning."""

from __future__ import annotations

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig


def refuse_unserved(config: ModelConfig) -> None:
    """Refuse a model that would fail or give wrong answers without an unsupported feature.

    Args:
        config: finished or not.

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
    refused = []
    if "model_repository_agents" in config.document:
        refused.append(("model_repository_agents", "the checks of the agents would not be made"))
    return refused


def _ignored(config: ModelConfig) -> list[str]:
    ignored = []
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        ignored.append("parameters TRITON_BATCH_STRATEGY_PATH names a custom batching library, which is not loaded")
    ignored += [
        f"it has no {field}s. If that is a mistake, add an {field} block to config.pbtxt, or add_{field}() in the "
        "model's auto_complete_config"
        for field, tensors in (("input", config.inputs), ("output", config.outputs))
        if not tensors
    ]
    return ignored
