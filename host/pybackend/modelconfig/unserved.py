"""What a configuration may ask for and this release does not do: refused by name, or served without it and said so."""

from __future__ import annotations

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig


def refuse_unserved(config: ModelConfig) -> None:
    """Refuse a model that would answer wrongly, or not at all, without what this release does not have.

    Args:
        config: as far as it is known.

    Raises:
        ModelConfigError: UNSUPPORTED; names the field and what to do.
    """
    for field, advice in _refused(config):
        raise ModelConfigError(
            f"model '{config.name}' asks for {field}, which this release does not support: {advice} ({config.source})",
            ErrorCode.UNSUPPORTED,
        )


def unserved_warnings(config: ModelConfig) -> tuple[str, ...]:
    """One sentence for each part of ``config`` that has no effect although the model is served."""
    return tuple(f"model '{config.name}': {text} ({config.source})" for text in _ignored(config))


def _refused(config: ModelConfig) -> list[tuple[str, str]]:
    refused = []
    if "model_repository_agents" in config.document:
        refused.append(("model_repository_agents", "what the agents should check would go unchecked"))
    return refused


def _ignored(config: ModelConfig) -> list[str]:
    ignored = []
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        ignored.append("parameters TRITON_BATCH_STRATEGY_PATH names a custom batching library, which is not loaded")
    return ignored
