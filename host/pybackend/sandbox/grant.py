"""The permissions of a confined model as an upper bound for models that it loads: loading a model must not gain any."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pybackend.errors import ErrorCode, InferenceError, ModelConfigError
from pybackend.sandbox.file_access import Account, obstacle
from pybackend.sandbox.file_rules import contains
from pybackend.sandbox.options import MIB, SandboxOptions, permissions, rank, resource_limits
from pybackend_wire.confinement import EXECUTE, READ, STRICT, WRITE

OVERRIDES_FLAG = "--allow-model-overrides"
_CONTROL = "SANDBOX_MODEL_CONTROL"


@dataclass(frozen=True)
class Grant:
    """The permissions of one process of a confined model, as far as they bound models that it loads."""

    model: str
    level: str
    network: bool
    unix_sockets: bool
    subprocesses: bool
    limits: dict[str, int]  # its limits, by the names of the kernel's resource limits
    uid: int | None = None  # the user in its configuration, None for none
    control: tuple[str, ...] | None = None  # full names of the models that it may load and unload, None for all
    overrides: bool = False  # whether it may send configurations and files for models of other authors, too
    # its user id and group id, -1 for those of the server
    user: tuple[int, int] = field(default=(-1, -1), compare=False)
    # for files, as pairs of a path and access letters
    rules: Sequence[Sequence[str]] = field(default=(), compare=False, repr=False)
    in_force: Collection[str] = field(default=(), compare=False)

    # Which models

    def check_control(self, name: str) -> None:
        """Check that it may load and unload a model."""
        if self.control is None or name in self.control:
            return
        here = f"{_CONTROL} in the parameters of its config.pbtxt"
        why = f"{here} does not name it"
        if self.level == STRICT:
            why = f"at level 'strict' a model loads and unloads only those that {here} names"
        raise InferenceError(
            f"model '{self.model}' may not load or unload model '{name}': {why}", ErrorCode.UNAVAILABLE
        )

    def check_override(self, name: str, own: Path | None, other: Path | None) -> None:
        """Check that it may send a configuration or files: for models of the same author, and with a flag for all. Blocking.

        Args:
            own: the directory of the grant's model in the repositories, None if there is none.
        """
        if self.level == STRICT:
            why = "at level 'strict' a model loads others only as the repository has them"
        elif not self.overrides and not _have_one_author(own, other):
            why = (
                "it may do so for models whose directory lies in the same repository as its own and has the same owner, and the "
                f"server's operator has not allowed it for others with {OVERRIDES_FLAG}"
            )
        else:
            return
        raise InferenceError(
            f"model '{self.model}' may not give a configuration or files for model '{name}': {why}. Without them, the "
            "model of that name in the repository is loaded",
            ErrorCode.UNAVAILABLE,
        )

    # Bounds

    def at_least(self, level: str) -> Grant:
        """Return the same grant at a level, or at its own level if that is stricter."""
        return self if rank(level) <= rank(self.level) else replace(self, level=level)

    def bounded(
        self, model: str, options: SandboxOptions, usual_level: str, own: Path | None, source: str
    ) -> SandboxOptions:
        """Bound the options of a model that it loads with its own configuration. Blocking.

        The result is no wider than this grant, and just as narrow where the options say nothing.

        Args:
            own: the model's directory if all files in it were sent along, else None.

        Raises:
            ModelConfigError: the options are wider than this grant.
        """
        if options.level is not None and rank(options.level) < rank(self.level):
            raise ModelConfigError(
                f"model '{model}': parameters SANDBOX is '{options.level}', but a model loaded with a configuration from "
                f"model '{self.model}' runs at '{self.level}' or stricter. Remove the parameter ({source})"
            )

        def wider(parameter: str) -> ModelConfigError:
            return ModelConfigError(
                f"model '{model}': parameters {parameter} would give it more than model '{self.model}', which loads it, "
                f"has. Remove the parameter, or set it in the configuration in the repository ({source})"
            )

        if options.uid not in {None, self.uid}:
            raise wider("SANDBOX_UID")
        level = max(options.level or usual_level, self.level, key=rank)
        options = replace(
            options,
            level=level,
            read=self._reached(options.read, READ + EXECUTE, own, wider("SANDBOX_READ")),
            write=self._reached(options.write, READ + EXECUTE + WRITE, own, wider("SANDBOX_WRITE")),
            model_control=self._controlled(level, options.model_control, wider(_CONTROL)),
        )
        return self._within_limits(level, self._within_permissions(level, options, wider), wider)

    def _within_permissions(
        self, level: str, options: SandboxOptions, wider: Callable[[str], ModelConfigError]
    ) -> SandboxOptions:
        for name in ("network", "unix_sockets", "subprocesses"):
            if getattr(permissions(level, options), name) and not getattr(self, name):
                if getattr(options, name):
                    raise wider(f"SANDBOX_{name.upper()}")
                change: dict[str, Any] = {name: False}
                options = replace(options, **change)
        return options

    def _within_limits(
        self, level: str, options: SandboxOptions, wider: Callable[[str], ModelConfigError]
    ) -> SandboxOptions:
        own_user = self.user[0] >= 0
        for limit, name, unit in (("DATA", "memory_mb", MIB), ("NPROC", "processes", 1)):
            if resource_limits(level, options, own_user=own_user)[limit] > self.limits[limit]:
                if getattr(options, name) is not None:
                    raise wider(f"SANDBOX_{name.upper()}")
                change: dict[str, Any] = {name: self.limits[limit] // unit}
                options = replace(options, **change)
        return options

    def _controlled(
        self, level: str, asked: tuple[str, ...] | None, refusal: ModelConfigError
    ) -> tuple[str, ...] | None:
        if self.control is None:
            return asked
        if asked is None:
            return asked if level == STRICT else self.control
        if not set(asked) <= set(self.control):
            raise refusal
        return asked

    def _reached(
        self, paths: Sequence[str], letters: str, own: Path | None, refusal: ModelConfigError
    ) -> tuple[str, ...]:
        same = {path for path, given in self.rules if set(letters) <= set(given)}
        kept = [path for path in paths if path in same]  # this grant has the very same rule
        paths = [path for path in paths if path not in same]
        resolved = [os.path.realpath(path) for path in paths]  # links may lead elsewhere later
        if own is not None and WRITE not in letters:
            resolved = [path for path in resolved if not contains(os.path.realpath(own), path)]  # readable anyway
        if not all(self.reaches(path, letters) for path in resolved):
            raise refusal
        return (*kept, *resolved)

    # Which files

    def reaches(self, path: str, letters: str = READ) -> bool:
        """Whether it has this access to a file, and cannot replace the file. Blocking.

        Args:
            path: without links.
        """
        if (
            not os.path.lexists(path)
            or self._changes(path, itself=False)
            or (self.user[0] >= 0 and obstacle([path], Account(self.user[0], frozenset(self.user[1:]))) is not None)
        ):
            return False
        return any(
            set(letters) <= set(given) and (rule == path if WRITE in letters else contains(rule, path))
            for rule, given in self._resolved
        )

    def may_change(self, path: Path) -> bool:
        return any(self._changes(text) for text in (os.path.abspath(path), os.path.realpath(path)))

    def _changes(self, path: str, *, itself: bool = True) -> bool:
        tops = [rule for rule, given in self._resolved if WRITE in given and contains(rule, path)]
        ways = ([path] if itself else []) + [str(parent) for parent in Path(path).parents]
        changed = [way for way in ways if any(contains(top, way) for top in tops)]
        return any(self.user[0] < 0 or _may_write(way, *self.user) for way in changed)

    @cached_property
    def _resolved(self) -> list[tuple[str, str]]:
        return [(os.path.realpath(path), letters) for path, letters in self.rules]


def _have_one_author(one: Path | None, other: Path | None) -> bool:
    if one is None or other is None or one.parent != other.parent:
        return False
    try:
        return os.stat(one).st_uid == os.stat(other).st_uid
    except OSError:
        return False


def _may_write(path: str, uid: int, gid: int) -> bool:
    """Whether permissions let a user change a file, or entries of other users in a directory."""
    try:
        status = os.stat(path)
    except OSError:
        return False  # the directories above decide whether it can be created
    if status.st_uid == uid:
        return True
    bit = stat.S_IWGRP if status.st_gid == gid else stat.S_IWOTH
    return bool(status.st_mode & bit) and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX)
