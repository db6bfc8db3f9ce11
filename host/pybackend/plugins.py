"""The one table of what stands around the server: the server imports none of it, and runs and passes its tests without it.

A row names an object of another package, which is imported when the row is first used. The row's Protocol lies beside the
server's code that uses the object; mypy holds the object against it, where the object is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pybackend.errors import SettingError

if TYPE_CHECKING:
    from pybackend.flag import FlagOwner
    from pybackend.frontend.http.api import Api, Apis
    from pybackend.frontend.http.further_port import FurtherPorts
    from pybackend.model.cache.kind import CacheKind
    from pybackend.modelconfig.schema import ModelConfig
    from pybackend.repository.remote import RemoteStorage
    from pybackend.runner import Companion, Runner

Key = TypeVar("Key")
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

OPENAI: Row[Api] = Row("OpenAI's API", "pybackend.frontend.http.openai_api", "OPENAI")
MLFLOW: Row[Api] = Row("the API of MLflow's server", "pybackend.frontend.http.mlflow_api", "MLFLOW")

APIS: Mapping[str, Row[Api]] = {"openai": OPENAI, "mlflow": MLFLOW}
"""APIs beside v2 on the port for HTTP, by the names of their settings and of their extras in signatures."""

_API_FLAGS: Sequence[Row[FlagOwner]] = (
    Row(OPENAI.what, "pybackend.cli.api_flags", "OPENAI", ("--allow-openai",)),
    Row(MLFLOW.what, "pybackend.cli.api_flags", "MLFLOW", ("--allow-mlflow",)),
)

_EXTRAS: Mapping[str, Row[Callable[[ModelConfig], object]]] = {
    "openai": Row(OPENAI.what, "pybackend.modelconfig.openai_tensors", "openai_tensors_of"),
    "mlflow": Row(MLFLOW.what, "pybackend.modelconfig.mlflow_columns", "columns_of"),
}

CLOUDS: Row[FurtherPorts] = Row(
    "the ports for SageMaker and Vertex AI",
    "pybackend.frontend.http.clouds",
    "CLOUDS",
    (
        "--allow-sagemaker",
        "--sagemaker-port",
        "--sagemaker-safe-port-range",
        "--allow-vertex-ai",
        "--vertex-ai-port",
        "--vertex-ai-default-model",
    ),
)

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

FURTHER_PORTS: Mapping[str, Row[FurtherPorts]] = {"clouds": CLOUDS}

COMPANIONS: Sequence[Row[Companion]] = (CONSOLE,)
"""Programs that run beside a server, in separate processes."""

RUNNERS: Mapping[str, Row[Runner]] = {"ray": RAY}
"""Engines that run servers instead of this process, by the value of ``--on``."""


def installed_apis(served: Collection[str] = ()) -> Apis:
    """The APIs beside v2, of the packages that are installed; ``served`` has the names of those that are served."""
    from pybackend.frontend.http.api import Apis  # late: flags are read before processes start

    return Apis(_installed(APIS), served)


def signature_extras(config: ModelConfig) -> Mapping[str, object]:
    """The meaning of a configuration for the installed APIs; see :data:`pybackend.modelconfig.signature.ExtrasOf`."""
    return {name: extra for name, read in _installed(_EXTRAS).items() if (extra := read(config))}


def further_port_owners() -> Collection[FurtherPorts]:
    """The objects that open further ports, of the packages that are installed."""
    return _installed(FURTHER_PORTS).values()


def flag_owners() -> Mapping[Row[FlagOwner], FlagOwner]:
    """The objects with flags, of the packages that are installed."""
    return _installed({row: row for row in _WITH_FLAGS})


def _installed(rows: Mapping[Key, Row[Plugin_co]]) -> Mapping[Key, Plugin_co]:
    found = {}
    for key, row in rows.items():
        with suppress(SettingError):  # said where something of it is used
            found[key] = row.load()
    return found


def require_owner(flag: str) -> None:
    """Raise SettingError if a flag belongs to a package that is not installed."""
    for row in _WITH_FLAGS:
        if flag in row.flags:
            row.load()


_WITH_FLAGS: Sequence[Row[FlagOwner]] = (*_API_FLAGS, CLOUDS, *COMPANIONS, *RUNNERS.values())
