"""The packages of ``pybackend[console]``, which a server does not need."""

from __future__ import annotations

import importlib.util
import sys

from pybackend.errors import ServerError
from pybackend_wire.installation import install_command

_PACKAGES = ("nicegui", "PIL")


def has_console() -> bool:
    """True if the packages of the console are installed."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


def require_extra() -> None:
    """Raise ServerError if the packages of the console are not installed."""
    if not has_console():
        raise ServerError(
            f"the console needs packages that are not installed beside {sys.executable}: {install_command('console')}"
        )
