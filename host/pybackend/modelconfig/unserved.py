"""What a configuration may ask for and this release does not do: refused by name, or served without it and said so."""

from __future__ import annotations

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig, Scheduling


def refuse_unserved(config: ModelConfig) -> None:
    """Refuse a model that would answer wrongly, or not at all, without what this release does not have.

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
    if config.scheduling is Scheduling.ENSEMBLE or config.platform == "ensemble":
        refused.append(("ensemble_scheduling", "call the composing models one after the other from the client"))
    if config.scheduling is Scheduling.SEQUENCE_BATCHING:
        refused.append(
            ("sequence_batching", "requests of one sequence would reach different instances and lose their state")
        )
    if config.decoupled:
        refused.append(
            (
                "model_transaction_policy { decoupled: true }",
                "set decoupled to false and return one response per request from execute",
            )
        )
    if "model_repository_agents" in config.document:
        refused.append(("model_repository_agents", "what the agents should check would go unchecked"))
    if "EXECUTION_ENV_PATH" in config.parameters:
        refused.append(
            ("parameters EXECUTION_ENV_PATH", "install what the model needs beside the server and remove the parameter")
        )
    return refused


def _ignored(config: ModelConfig) -> list[str]:
    ignored = []
    if config.scheduling is Scheduling.DYNAMIC_BATCHING:
        ignored.append("dynamic_batching is not supported yet, the model runs unbatched: one request per execution")
    if config.response_cache_enabled:
        ignored.append("response_cache is not supported yet, every request is executed")
    if config.document["model_warmup"]:
        ignored.append("model_warmup is not supported yet, the model becomes ready without having run its samples")
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        ignored.append("parameters TRITON_BATCH_STRATEGY_PATH names a custom batching library, which is not loaded")
    return ignored
