"""The keys of a model's ``parameters`` that this server interprets. All other keys belong to the model."""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.schema import ModelConfig
from pybackend.sandbox.options import HOST_UID, MIB, SandboxOptions
from pybackend.spelling import closest
from pybackend_wire.confinement import LEVELS
from pybackend_wire.model_options import SANDBOX_PREFIX, is_option

_T = TypeVar("_T")

DEFAULT_RESTART_LIMIT, DEFAULT_RESTART_RETRY_S = 10, 60.0


@dataclass(frozen=True)
class MemoryLimit:
    """A limit on the memory of a process, and the name of the option or flag that sets it."""

    nbytes: int
    option: str


@dataclass(frozen=True)
class ModelOptions:
    """The options of one model."""

    copy_inputs: bool = False  # INPUT_COPY, models get private copies of their inputs
    validate_outputs: bool = False  # VALIDATE_OUTPUTS, outputs are checked against the configuration
    # ASYNC_EXECUTE_CONCURRENCY, calls of an ``async def execute`` that may overlap in each instance
    concurrency: int = 1
    execution_limit_s: float = 0  # EXECUTION_TIME_LIMIT_S, how long ``execute`` may run; 0 for no limit
    # RESTART_LIMIT, consecutive restarts before an instance is given up; 0 for no limit
    restart_limit: int = DEFAULT_RESTART_LIMIT
    # RESTART_RETRY_S, how often an instance that was given up is tried again; 0 for never
    restart_retry_s: float = DEFAULT_RESTART_RETRY_S
    # PROCESS_MEMORY_LIMIT_MB, a process whose private memory is more is ended; None for no limit
    process_memory: MemoryLimit | None = None
    # RESTART_AFTER_REQUESTS, a process that has had so many makes place for a new one; 0 for any number
    restart_after_requests: int = 0
    # RESTART_AFTER_REQUESTS_JITTER, up to so many more, by chance
    restart_jitter: int = 0
    # RESTART_AT_MEMORY_MB, a process whose private memory is more makes place for a new one; 0 for any size
    restart_at_memory_bytes: int = 0
    # CANCEL_CALLS_WITH_REQUEST, cancelling a request also cancels the model's calls on its behalf
    cancels_calls: bool = False
    # CLIENT_MEMORY, models view inputs in clients' shared memory regions instead of copying them
    views_regions: bool = False

    @property
    def renews_processes(self) -> bool:
        """True if there is a time when a process that lives makes place for a new one."""
        return bool(self.restart_after_requests or self.restart_at_memory_bytes)


def preload_of(config: ModelConfig) -> tuple[str, ...] | None:
    """PRELOAD: the additional modules of the zygote that forks a model's processes.

    None if ZYGOTE wants none to be forked.
    """
    may_fork = read_option(config, "ZYGOTE", True, yes_or_no, '"yes" or "no"')
    none: tuple[str, ...] = ()
    modules = read_option(config, "PRELOAD", none, _modules, "comma-separated names of modules")
    return modules if may_fork else None


PROCESS_GROUP = "PROCESS_GROUP"
PROCESS_MEMORY_LIMIT = "PROCESS_MEMORY_LIMIT_MB"
RESTART_AFTER_REQUESTS, RESTART_AT_MEMORY = "RESTART_AFTER_REQUESTS", "RESTART_AT_MEMORY_MB"


def process_group_of(config: ModelConfig) -> str:
    """PROCESS_GROUP: the models of this name live in one process; ``""`` for a model with its own processes."""
    return read_option(config, PROCESS_GROUP, "", _group_name, "a name of letters, digits, '_', '-' and '.'")


def options_of(
    config: ModelConfig, *, validate_outputs: bool = False, process_memory: MemoryLimit | None = None
) -> ModelOptions:
    """Read the options.

    ``validate_outputs`` counts for a model without VALIDATE_OUTPUTS, and so does ``process_memory``.
    """
    options = ModelOptions(
        copy_inputs=config.parameters.get("INPUT_COPY") == "yes",
        validate_outputs=config.parameters.get("VALIDATE_OUTPUTS", "yes" if validate_outputs else "no") == "yes",
        concurrency=read_option(config, "ASYNC_EXECUTE_CONCURRENCY", 1, positive, "a whole number of at least 1"),
        execution_limit_s=read_option(
            config, "EXECUTION_TIME_LIMIT_S", 0.0, _seconds, "a number of seconds, 0 for no limit"
        ),
        restart_limit=read_option(
            config, "RESTART_LIMIT", DEFAULT_RESTART_LIMIT, _natural, "a whole number, 0 for no limit"
        ),
        restart_retry_s=read_option(
            config, "RESTART_RETRY_S", DEFAULT_RESTART_RETRY_S, _seconds, "a number of seconds, 0 for never"
        ),
        cancels_calls=read_option(config, "CANCEL_CALLS_WITH_REQUEST", False, yes_or_no, '"yes" or "no"'),
        views_regions=read_option(config, "CLIENT_MEMORY", False, _view, '"copy" or "view"'),
        process_memory=_process_memory(config, process_memory),
        restart_after_requests=read_option(config, RESTART_AFTER_REQUESTS, 0, _natural, "a whole number, 0 for never"),
        restart_jitter=read_option(config, f"{RESTART_AFTER_REQUESTS}_JITTER", 0, _natural, "a whole number"),
        restart_at_memory_bytes=read_option(
            config, RESTART_AT_MEMORY, 0, _megabytes, "a whole number of megabytes, 0 for never"
        ),
    )
    if options.renews_processes and process_group_of(config):
        raise ModelConfigError(
            f"model '{config.name}': parameters {RESTART_AFTER_REQUESTS} and {RESTART_AT_MEMORY} are not for a model with "
            f"{PROCESS_GROUP}, whose process is also that of others: take one of them out. {PROCESS_MEMORY_LIMIT} ends such a "
            f"process with all its models ({config.source})"
        )
    return options


def _process_memory(config: ModelConfig, default: MemoryLimit | None) -> MemoryLimit | None:
    expected = "a whole number of megabytes, 0 for no limit"
    nbytes = read_option(config, PROCESS_MEMORY_LIMIT, None, _megabytes, expected)
    if nbytes is None:
        return default
    return MemoryLimit(nbytes, PROCESS_MEMORY_LIMIT) if nbytes else None


def read_option(config: ModelConfig, key: str, default: _T, parse: Callable[[str], _T], expected: str) -> _T:
    """A parameter's value, read by ``parse``, whose ValueError becomes an error that says what is expected."""
    assert is_option(key), key  # else a backend would refuse it as unknown
    text = config.parameters.get(key)
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError:
        raise ModelConfigError(
            f"model '{config.name}': parameters {key} must be {expected}, it is '{text}' ({config.source})"
        ) from None


_MOST_GROUP_NAME = 100


def _group_name(text: str) -> str:
    if not 0 < len(text) <= _MOST_GROUP_NAME or not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ValueError(text)
    return text


def positive(text: str) -> int:
    """A whole number of at least 1; raises ValueError for another text."""
    value = _natural(text)
    if value < 1:
        raise ValueError(text)
    return value


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _megabytes(text: str) -> int:
    return _natural(text) * MIB


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


def yes_or_no(text: str) -> bool:
    """Whether a text is "yes"; raises ValueError if it is not "no" either."""
    if text not in {"yes", "no"}:
        raise ValueError(text)
    return text == "yes"


_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_HIGHEST_UID = 2**32 - 2


LEAST_MEMORY_MB = 96
"""Memory of an idle process with Python, numpy and its threads; measured on two cores."""


def sandbox_options_of(config: ModelConfig, model_directory: Path) -> SandboxOptions:
    """Read the options."""
    known = set()

    def read(key: str, parse: Callable[[str], _T], expected: str) -> _T | None:
        known.add(key)
        return read_option(config, key, None, parse, expected)

    def paths(text: str) -> tuple[str, ...]:
        return _paths(text.replace(_MODEL_DIRECTORY, str(model_directory)))

    listed = "absolute paths separated by colons"
    options = SandboxOptions(
        level=read("SANDBOX", _level, '"standard", "strict" or "off"'),
        network=read("SANDBOX_NETWORK", yes_or_no, '"yes" or "no"'),
        unix_sockets=read("SANDBOX_UNIX_SOCKETS", yes_or_no, '"yes" or "no"'),
        subprocesses=read("SANDBOX_SUBPROCESSES", yes_or_no, '"yes" or "no"'),
        read=read("SANDBOX_READ", paths, listed) or (),
        write=read("SANDBOX_WRITE", paths, listed) or (),
        memory_mb=read(
            "SANDBOX_MEMORY_MB", _memory, f"a whole number of at least {LEAST_MEMORY_MB}, which Python and numpy need"
        ),
        processes=read("SANDBOX_PROCESSES", positive, "a whole number of at least 1"),
        uid=read("SANDBOX_UID", _uid, 'a numeric user id, or "host" for the server\'s'),
        model_control=read("SANDBOX_MODEL_CONTROL", _names, "names of models separated by commas"),
    )
    # Accepting a misspelt key would silently leave a model with less protection, or fewer rights, than intended.
    unknown = sorted(key for key in config.parameters if key.startswith(SANDBOX_PREFIX + "_") and key not in known)
    if unknown:
        near = closest(unknown[0], known)
        meant = f"Did you mean {near}? " if near else ""
        raise ModelConfigError(
            f"model '{config.name}': parameters {unknown[0]} is not an option of the sandbox. {meant}Options: "
            f"{', '.join(sorted(known))} ({config.source})"
        )
    return options


def _level(text: str) -> str:
    if text not in LEVELS:
        raise ValueError(text)
    return text


def _memory(text: str) -> int:
    megabytes = positive(text)
    if megabytes < LEAST_MEMORY_MB:
        raise ValueError(text)
    return megabytes


def _uid(text: str) -> int:
    if text == "host":
        return HOST_UID
    uid = positive(text)
    if uid > _HIGHEST_UID:
        raise ValueError(text)
    return uid


def _names(text: str) -> tuple[str, ...]:
    names = tuple(sorted({name.strip() for name in text.split(",")}))
    if "" in names:
        raise ValueError(text)
    return names


def _paths(text: str) -> tuple[str, ...]:
    paths = tuple(text.split(":"))
    if not all(os.path.isabs(path) and os.path.normpath(path) != "/" and "\0" not in path for path in paths):
        raise ValueError(text)
    return paths
