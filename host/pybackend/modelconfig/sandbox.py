"""The sandbox options in a model's ``parameters``: all keys that begin with SANDBOX."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.options import positive, read_option, yes_or_no
from pybackend.modelconfig.schema import ModelConfig
from pybackend.sandbox.options import HOST_UID, SandboxOptions
from pybackend.spelling import closest
from pybackend_wire.confinement import LEVELS

_T = TypeVar("_T")

PREFIX = "SANDBOX"
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
    unknown = sorted(key for key in config.parameters if key.startswith(PREFIX + "_") and key not in known)
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
