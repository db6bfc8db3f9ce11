"""What a model's ``parameters`` ask of this server: keys with a meaning, beside those that are the model's own business."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.schema import ModelConfig

_T = TypeVar("_T")

DEFAULT_RESTART_LIMIT = 10


@dataclass(frozen=True)
class ModelOptions:
    """The options of one model.

    Attributes:
        copy_inputs: INPUT_COPY, models get private copies of their inputs.
        validate_outputs: VALIDATE_OUTPUTS, outputs are held against the configuration.
        concurrency: ASYNC_EXECUTE_CONCURRENCY, calls of an ``async def execute`` that may overlap in each instance.
        execution_limit_s: EXECUTION_TIME_LIMIT_S, how long ``execute`` may run; 0 for as long as it likes.
        restart_limit: RESTART_LIMIT, restarts in a row before an instance is given up; 0 for none.
        cancels_calls: CANCEL_CALLS_WITH_REQUEST, a cancelled request cancels what the model runs on its behalf.
    """

    copy_inputs: bool = False
    validate_outputs: bool = False
    concurrency: int = 1
    execution_limit_s: float = 0
    restart_limit: int = DEFAULT_RESTART_LIMIT
    cancels_calls: bool = False


@dataclass(frozen=True)
class StartOptions:
    """How the processes of one model may be started.

    Attributes:
        zygote: ZYGOTE, they may be forked from a process that has imported what they need.
        preload: PRELOAD, modules that such a process has imported too.
    """

    zygote: bool = True
    preload: tuple[str, ...] = ()


def start_options_of(config: ModelConfig) -> StartOptions:
    """Read how its processes may be started.

    Raises:
        ModelConfigError: a value that is none.
    """
    return StartOptions(
        zygote=_read(config, "ZYGOTE", True, _yes, '"yes" or "no"'),
        preload=_read(config, "PRELOAD", (), _modules, "names of modules with commas between them"),
    )


def options_of(config: ModelConfig) -> ModelOptions:
    """Read the options.

    Raises:
        ModelConfigError: a value that is none.
    """
    return ModelOptions(
        copy_inputs=config.parameters.get("INPUT_COPY") == "yes",
        validate_outputs=config.parameters.get("VALIDATE_OUTPUTS") == "yes",
        concurrency=_read(config, "ASYNC_EXECUTE_CONCURRENCY", 1, _positive, "a whole number from 1 on"),
        execution_limit_s=_read(config, "EXECUTION_TIME_LIMIT_S", 0.0, _seconds, "a number of seconds, 0 for no limit"),
        restart_limit=_read(config, "RESTART_LIMIT", DEFAULT_RESTART_LIMIT, _natural, "a whole number, 0 for no limit"),
        cancels_calls=_read(config, "CANCEL_CALLS_WITH_REQUEST", False, _yes, '"yes" or "no"'),
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


def _yes(text: str) -> bool:
    if text not in {"yes", "no"}:
        raise ValueError(text)
    return text == "yes"
