"""Where backends are found: the operator's directory first, then those that come with this server."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME
from pybackend.settings import DEFAULT_BACKEND_DIRECTORY

ENVIRONMENT = "environment"
"""The setting of a backend that names an environment for its models."""

_SHIPPED, _RECIPE, _LOCK = "pybackend_backends", "requirements.txt", "requirements-lock.txt"


@cache
def shipped_backends() -> Path:
    """The directory of the backends that come with this server, as installed."""
    spec = importlib.util.find_spec(_SHIPPED)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def recipe_of(backend: str) -> Path:
    """The list of packages that the models of a shipped backend need."""
    return shipped_backends() / backend / _RECIPE


def lock_of(backend: str) -> Path:
    """The exact versions of the packages in :func:`recipe_of`, with hashes, for all CPythons on Linux."""
    return shipped_backends() / backend / _LOCK


def backends_with_recipes() -> list[str]:
    """The shipped backends for which an environment can be packed, sorted."""
    return sorted(path.parent.name for path in shipped_backends().glob(f"*/{_RECIPE}"))


@dataclass(frozen=True)
class BackendPlaces:
    """The operator's choices for backends."""

    # of the operator's own backends, one directory for each; it need not exist
    directory: Path = DEFAULT_BACKEND_DIRECTORY
    # of those that come with this server; models' processes must be able to read it
    shipped: Path = field(default_factory=shipped_backends)
    # of ``--backend-config``, by backend; ``""`` has those of all backends
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def home(self, backend: str, runtime: str = "") -> Path:
        """The directory of a backend; one that need not exist if nobody has such a backend."""
        file = runtime or DEFAULT_MODEL_FILENAME
        own, shipped = self.directory / backend, self.shipped / backend
        return shipped if not os.path.isfile(own / file) and os.path.isfile(shipped / file) else own

    def is_shipped(self, backend: str, runtime: str = "") -> bool:
        """Whether a backend of this server serves, not one of the operator's."""
        return self.home(backend, runtime).parent == self.shipped

    def settings_of(self, backend: str) -> dict[str, str]:
        """The operator's settings of one backend; its own win over those of all backends."""
        return {**self.settings.get("", {}), **self.settings.get(backend, {})}

    def environment_of(self, backend: str) -> Path | None:
        """The environment that the operator has chosen for a backend's models, None for none."""
        text = self.settings.get(backend, {}).get(ENVIRONMENT)
        return Path(text).absolute() if text else None
