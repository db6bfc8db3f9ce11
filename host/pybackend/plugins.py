"""The one table of what stands around the server: the server imports none of it, and runs and passes its tests without it.

A row names an object of another package, which is imported when the row is first used. The row's Protocol lies beside the
server's code that uses the object; mypy holds the object against it, where the object is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from pybackend.errors import SettingError
from pybackend.flag import FlagOwner
from pybackend.model.cache.kind import CacheKind
from pybackend.repository.remote import RemoteStorage
from pybackend.runner import Companion, Runner

Plugin_co = TypeVar("Plugin_co", covariant=True)


@dataclass(frozen=True)
class Row(Generic[Plugin_co]):
    """An object of a package around the server."""

    what: str  # it adds this to the server, for messages
    module: str
    object: str  # the object's name in the module
    flags: tuple[
        str, ...
    ] = ()  # names of its flags of ``serve``, so that they can be explained where the package is missing

    def load(self) -> Plugin_co:
        """The object. Raises SettingError: its package is not installed."""
        return cast("Plugin_co", _imported(self))


@cache
def _imported(row: Row[Any]) -> object:
    try:
        return getattr(import_module(row.module), row.object)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{row.module}.".startswith(f"{error.name}."):
            raise
        raise SettingError(
            f"this installation of pybackend lacks the package {row.module.partition('.')[0]}, which adds {row.what}: install all "
            "of pybackend."
        ) from None


STORAGE: Row[RemoteStorage] = Row("repositories in cloud storage", "pybackend.repository.mirror.storage", "STORAGE")

CACHES: Mapping[str, Row[CacheKind]] = {
    "local": Row("a response cache in memory", "pybackend.model.cache.local", "LOCAL"),
    "redis": Row("a response cache in Redis", "pybackend.model.cache.redis", "REDIS"),
}
"""The kinds of response caches, by their names in ``--cache-config``."""

CONSOLE: Row[Companion] = Row("the console", "pybackend.tools.console.companion", "CONSOLE", ("--console",))

RAY: Row[Runner] = Row(
    "several machines by Ray",
    "pybackend.ray.runner",
    "RAY",
    (
        "--replicas",
        "--target-ongoing",
        "--target-waiting",
        "--scale-down-secs",
        "--pool",
        "--entrances",
        "--update",
        "--replica-cpus",
        "--replica-gpus",
    ),
)

COMPANIONS: Sequence[Row[Companion]] = (CONSOLE,)
"""Programs that run beside a server, in separate processes."""

RUNNERS: Mapping[str, Row[Runner]] = {"ray": RAY}
"""Engines that run servers instead of this process, by the value of ``--on``."""


def flag_owners() -> Mapping[Row[FlagOwner], FlagOwner]:
    """The objects with flags, of the packages that are installed."""
    found: dict[Row[FlagOwner], FlagOwner] = {}
    for row in _WITH_FLAGS:
        try:
            found[row] = row.load()
        except SettingError:  # :func:`require_owner` says so where a flag of it is used
            continue
    return found


def require_owner(flag: str) -> None:
    """Raise SettingError if a flag belongs to a package that is not installed."""
    for row in _WITH_FLAGS:
        if flag in row.flags:
            row.load()


_WITH_FLAGS: Sequence[Row[FlagOwner]] = (*COMPANIONS, *RUNNERS.values())
