"""The one table of what stands around the server: the server imports none of it, and runs and passes its tests without it.

A row names an object of another package, which is imported when the row is first used. What the object must offer is a
Protocol that lies beside the server's code that uses it; mypy holds the object against it, where the object is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from pybackend.errors import SettingError
from pybackend.repository.remote import RemoteStorage

Plugin_co = TypeVar("Plugin_co", covariant=True)


@dataclass(frozen=True)
class Row(Generic[Plugin_co]):
    """An object of a package around the server."""

    what: str  # it adds this to the server, for messages
    module: str
    object: str  # the object's name in the module

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
