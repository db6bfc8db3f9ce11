"""The keys of a model's ``parameters`` that this server interprets. All other keys belong to the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.schema import ModelConfig

_T = TypeVar("_T")

DEFAULT_RESTART_LIMIT, DEFAULT_RESTART_RETRY_S = 10, 60.0


@dataclass(frozen=True)
class ModelOptions:
    """The options of one model.

    Attributes:
        copy_inputs: INPUT_COPY, models get private copies of their inputs.
        validate_outputs: VALIDATE_OUTPUTS, outputs are checked against the configuration.
        concurrency: ASYNC_EXECUTE_CONCURRENCY, calls of an ``async def execute`` that may overlap in each instance.
        execution_limit_s: EXECUTION_TIME_LIMIT_S, how long ``execute`` may run; 0 for no limit.
        restart_limit: RESTART_LIMIT, consecutive restarts before an instance is given up; 0 for no limit.
        restart_retry_s: RESTART_RETRY_S, how often an instance that was given up is tried again; 0 for never.
        cancels_calls: CANCEL_CALLS_WITH_REQUEST, cancelling a request also cancels the model's calls on its behalf.
        views_regions: CLIENT_MEMORY, models view inputs in clients' shared memory regions instead of copying them.
    """

    copy_inputs: bool = False
    validate_outputs: bool = False
    concurrency: int = 1
    execution_limit_s: float = 0
    restart_limit: int = DEFAULT_RESTART_LIMIT
    restart_retry_s: float = DEFAULT_RESTART_RETRY_S
    cancels_calls: bool = False
    views_regions: bool = False


@dataclass(frozen=True)
class StartOptions:
    """How the processes of one model may be started.

    Attributes:
        zygote: ZYGOTE, processes may be forked from one with preloaded modules.
        preload: PRELOAD, additional modules that such a process imports.
    """

    zygote: bool = True
    preload: tuple[str, ...] = ()


def start_options_of(config: ModelConfig) -> StartOptions:
    """Read the options for starting processes.

    Raises:
        ModelConfigError: a value is invalid.
    """
    return StartOptions(
        zygote=_read(config, "ZYGOTE", True, _yes, '"yes" or "no"'),
        preload=_read(config, "PRELOAD", (), _modules, "comma-separated names of modules"),
    )


def options_of(config: ModelConfig, *, validate_outputs: bool = False) -> ModelOptions:
    """Read the options.

    Args:
        validate_outputs: for a model without VALIDATE_OUTPUTS.

    Raises:
        ModelConfigError: a value is invalid.
    """
    return ModelOptions(
        copy_inputs=config.parameters.get("INPUT_COPY") == "yes",
        validate_outputs=config.parameters.get("VALIDATE_OUTPUTS", "yes" if validate_outputs else "no") == "yes",
        concurrency=_read(config, "ASYNC_EXECUTE_CONCURRENCY", 1, _positive, "a whole number of at least 1"),
        execution_limit_s=_read(config, "EXECUTION_TIME_LIMIT_S", 0.0, _seconds, "a number of seconds, 0 for no limit"),
        restart_limit=_read(config, "RESTART_LIMIT", DEFAULT_RESTART_LIMIT, _natural, "a whole number, 0 for no limit"),
        restart_retry_s=_read(
            config, "RESTART_RETRY_S", DEFAULT_RESTART_RETRY_S, _seconds, "a number of seconds, 0 for never"
        ),
        cancels_calls=_read(config, "CANCEL_CALLS_WITH_REQUEST", False, _yes, '"yes" or "no"'),
        views_regions=_read(config, "CLIENT_MEMORY", False, _view, '"copy" or "view"'),
    )


def _read(config: ModelConfig, key: str, default: _T, parse: Callable[[str], _T], expected: str) -> _T:
    text = config.parameters.get(key)
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError:
        raise ModelConfigError(
            f"model '{config.name}': parameters {key} must be {expected}, it is '{text}' ({config.source})"
        ) from None


def _positive(text: str) -> int:
    value = _natural(text)
    if value < 1:
        raise ValueError(text)
    return value


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(text)
    return value


def _modules(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError(text)
    return names


def _view(text: str) -> bool:
    if text not in {"copy", "view"}:
        raise ValueError(text)
    return text == "view"


def _yes(text: str) -> bool:
    if text not in {"yes", "no"}:
        raise ValueError(text)
    return text == "yes"
