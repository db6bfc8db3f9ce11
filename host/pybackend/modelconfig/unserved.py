"""What a configuration may ask for and this release does not do: refused by name, or served without it and said so."""

from __future__ import annotations

from pathlib import Path

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig


def refuse_unserved(config: ModelConfig, default_environment: Path | None = None) -> None:
    """Refuse a model that would answer wrongly, or not at all, without what this release does not have.

    Args:
        config: as far as it is known.
        default_environment: the packed environment that the model's backend brings for models that name none.

    Raises:
        ModelConfigError: UNSUPPORTED; names the field and what to do.
    """
    refused = _refused(config)
    if default_environment is not None:
        install = f"install what the backend needs beside the server and remove {default_environment}"
        refused.append(("parameters EXECUTION_ENV_PATH", f"{install}, which its models would run in"))
    for field, advice in refused:
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
    if "EXECUTION_ENV_PATH" in config.parameters:
        refused.append(
            ("parameters EXECUTION_ENV_PATH", "install what the model needs beside the server and remove the parameter")
        )
    return refused


def _ignored(config: ModelConfig) -> list[str]:
    ignored = []
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        ignored.append("parameters TRITON_BATCH_STRATEGY_PATH names a custom batching library, which is not loaded")
    return ignored
