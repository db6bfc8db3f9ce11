"""The one table of what stands around the server: the server imports none of it, and runs and passes its tests without it.

A row names an object of another package, which is imported when the row is first used. The row's type lies beside the
server's code that uses the object; mypy holds the object against it, where the object is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from pybackend.errors import SettingError

if TYPE_CHECKING:
    from pathlib import Path

    from pybackend.flag import FlagOwner
    from pybackend.frontend.calls.other_servers import OtherServers
    from pybackend.frontend.http.api import Api, Apis
    from pybackend.frontend.http.further_port import FurtherPorts
    from pybackend.model.cache.kind import CacheKind
    from pybackend.modelconfig.schema import ModelConfig
    from pybackend.repository.remote import RemoteStorage
    from pybackend.runner import Companion, Runner, Serve

Key = TypeVar("Key")
Plugin_co = TypeVar("Plugin_co", covariant=True)


_PACKAGES = ("pybackend_addons", "pybackend_client", "pybackend_tools")
"""The packages of the rows, which may need each other."""


@dataclass(frozen=True)
class PluginRow(Generic[Plugin_co]):
    """An object of a package around the server."""

    what: str  # what it is, for messages
    module: str
    object: str  # the object's name in the module
    # names of its flags of ``serve``, so that they can be explained where the package is missing
    flags: tuple[str, ...] = ()

    def load(self) -> Plugin_co:
        """The object. Raises SettingError: its package is not installed."""
        return cast("Plugin_co", _imported(self))

    def load_if_installed(self) -> Plugin_co | None:
        """The same; None if its package is not installed."""
        with suppress(SettingError):
            return self.load()
        return None


@cache
def _imported(row: PluginRow[Any]) -> object:
    try:
        return getattr(import_module(row.module), row.object)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if not (f"{row.module}.".startswith(f"{missing}.") or missing in _PACKAGES):
            raise
        raise SettingError(
            f"this installation of pybackend lacks the package {missing.partition('.')[0]}. Without it, there is no support for "
            f"{row.what}: install all of pybackend."
        ) from None


STORAGE: PluginRow[RemoteStorage] = PluginRow(
    "repositories in cloud storage", "pybackend_addons.storage.storage", "STORAGE"
)

CACHES: Mapping[str, PluginRow[CacheKind]] = {
    "local": PluginRow("a response cache in memory", "pybackend.model.cache.local", "LOCAL"),
    "redis": PluginRow("a response cache in Redis", "pybackend_addons.redis.response_cache", "REDIS"),
}
"""The kinds of response caches, by their names in ``--cache-config``."""

OPENAI: PluginRow[Api] = PluginRow("OpenAI's API", "pybackend_addons.openai.api", "OPENAI")
MLFLOW: PluginRow[Api] = PluginRow("the API of MLflow's server", "pybackend_addons.mlflow.api", "MLFLOW")

APIS: Mapping[str, PluginRow[Api]] = {"openai": OPENAI, "mlflow": MLFLOW}
"""APIs beside v2 on the port for HTTP, by the names of their settings and of their extras in signatures."""

_API_FLAGS: Sequence[PluginRow[FlagOwner]] = (
    PluginRow(OPENAI.what, "pybackend_addons.api_flags", "OPENAI", ("--allow-openai",)),
    PluginRow(MLFLOW.what, "pybackend_addons.api_flags", "MLFLOW", ("--allow-mlflow",)),
)

_EXTRAS: Mapping[str, PluginRow[Callable[[ModelConfig], object]]] = {
    "openai": PluginRow(OPENAI.what, "pybackend_addons.openai.tensors", "openai_tensors_of"),
    "mlflow": PluginRow(MLFLOW.what, "pybackend_addons.mlflow.columns", "columns_of"),
}

CLOUDS: PluginRow[FurtherPorts] = PluginRow(
    "the ports for SageMaker and Vertex AI",
    "pybackend_addons.clouds.ports",
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

OTHER_SERVERS: PluginRow[Callable[[Path], OtherServers]] = PluginRow(
    "calls of models to those of other servers", "pybackend_addons.ray.pool_calls", "POOLS"
)
"""Makes the way to the servers that a file names. Raises ServerError: the file cannot be read, or a library is missing.
"""

FRAMEWORK_FILES: PluginRow[Callable[[Path], str | None]] = PluginRow(
    "models from files of frameworks", "pybackend_tools.importing.detection", "title_of"
)
"""Words for what lies at a path that is no repository of models; None for everything unknown."""

CONSOLE: PluginRow[Companion] = PluginRow("the console", "pybackend_tools.console.companion", "CONSOLE", ("--console",))

RAY: PluginRow[Runner] = PluginRow(
    "several machines by Ray",
    "pybackend_addons.ray.runner",
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

FURTHER_PORTS: Mapping[str, PluginRow[FurtherPorts]] = {"clouds": CLOUDS}

COMPANIONS: Sequence[PluginRow[Companion]] = (CONSOLE,)
"""Programs that run beside a server, in separate processes."""

RUNNERS: Mapping[str, PluginRow[Runner]] = {"ray": RAY}
"""Engines that run servers instead of this process, by the value of ``--on``."""


class Command(NamedTuple):
    """A command of ``pybackend``: what it does, and its function."""

    text: str
    run: PluginRow[Callable[[Sequence[str]], int]] | None = None
    run_with: PluginRow[Callable[[Sequence[str], Serve], int]] | None = (
        None  # gets the function that runs a server, too
    )


COMMANDS: Mapping[str, Mapping[str, Command]] = {
    "write models": {
        "new": Command(
            "write a model to begin with, and a test and a client for it",
            run=PluginRow("`pybackend new`", "pybackend_tools.terminal.new_command", "run_new"),
        ),
        "import": Command(
            "make an entry of a repository from a file of a framework",
            run_with=PluginRow("`pybackend import`", "pybackend_tools.importing.import_command", "run_import"),
        ),
        "optimize": Command(
            "make one from the form of a file that serves it best",
            run_with=PluginRow("`pybackend optimize`", "pybackend_tools.optimizer.optimize_command", "run_optimize"),
        ),
        "dev": Command(
            "serve models, and load them again when a file is saved",
            run_with=PluginRow("`pybackend dev`", "pybackend_tools.terminal.dev_command", "run_dev"),
        ),
        "check": Command(
            "validate the models of a repository without running them",
            run=PluginRow("`pybackend check`", "pybackend_tools.terminal.check_command", "run_check"),
        ),
        "infer": Command(
            "send one request to a model and print the response",
            run_with=PluginRow("`pybackend infer`", "pybackend_tools.terminal.infer_command", "run_infer"),
        ),
        "client": Command(
            "write a typed client for one model of a running server",
            run=PluginRow("`pybackend client`", "pybackend_tools.terminal.client_command", "run_client"),
        ),
        "graph": Command(
            "draw the ensembles of a repository",
            run=PluginRow("`pybackend graph`", "pybackend_tools.terminal.graph", "run_graph"),
        ),
        "export-config": Command(
            "print the complete configuration of a model",
            run_with=PluginRow(
                "`pybackend export-config`", "pybackend_tools.terminal.export_config_command", "run_export_config"
            ),
        ),
    },
    "serve them": {
        "serve": Command("serve the models of a repository"),
        "analyze": Command(
            "find the configuration of models that serves them best on this machine",
            run_with=PluginRow("`pybackend analyze`", "pybackend_tools.analyzer.analyze_command", "run_analyze"),
        ),
        "doctor": Command(
            "check whether this machine can run a server",
            run=PluginRow("`pybackend doctor`", "pybackend_tools.terminal.doctor_command", "run_doctor"),
        ),
        "export": Command(
            "write the file with which Kubernetes or Ray Serve runs a repository",
            run_with=PluginRow("`pybackend export`", "pybackend_addons.ray.export_command", "run_export"),
        ),
    },
    "control a running server": {
        "status": Command(
            "list its models",
            run=PluginRow("`pybackend status`", "pybackend_tools.terminal.control_command", "run_status"),
        ),
        "stack": Command(
            "show where a model hangs",
            run=PluginRow("`pybackend stack`", "pybackend_tools.terminal.control_command", "run_stack"),
        ),
        "top": Command(
            "show requests, failures and times of its models, live",
            run=PluginRow("`pybackend top`", "pybackend_tools.terminal.top_command", "run_top"),
        ),
        "console": Command(
            "show it in the browser, and try its models there",
            run=PluginRow("`pybackend console`", "pybackend_tools.console.console_command", "run_console"),
        ),
        "load": Command(
            "load a model",
            run=PluginRow("`pybackend load`", "pybackend_tools.terminal.control_command", "run_load"),
        ),
        "traffic": Command(
            "distribute requests over a model's versions",
            run=PluginRow("`pybackend traffic`", "pybackend_tools.terminal.control_command", "run_traffic"),
        ),
        "unload": Command(
            "unload a model",
            run=PluginRow("`pybackend unload`", "pybackend_tools.terminal.control_command", "run_unload"),
        ),
    },
    "environments of models": {
        "pack": Command(
            "pack an environment",
            run=PluginRow("`pybackend pack`", "pybackend_tools.pack.pack_command", "run_pack"),
        ),
        "env": Command(
            "inspect and maintain them",
            run=PluginRow("`pybackend env`", "pybackend_tools.pack.env_command", "run_env"),
        ),
    },
    "others": {"version": Command("print the version")},
}
"""The commands by group. Those without an object are the server's own."""


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


def flag_owners() -> Collection[FlagOwner]:
    """The objects with flags, of the packages that are installed."""
    return _installed({row: row for row in _WITH_FLAGS}).values()


def _installed(rows: Mapping[Key, PluginRow[Plugin_co]]) -> Mapping[Key, Plugin_co]:
    found = {key: row.load_if_installed() for key, row in rows.items()}
    return {key: plugin for key, plugin in found.items() if plugin is not None}


def require_owner(flag: str) -> None:
    """Raise SettingError if a flag belongs to a package that is not installed."""
    for row in _WITH_FLAGS:
        if flag in row.flags:
            row.load()


_WITH_FLAGS: Sequence[PluginRow[FlagOwner]] = (*_API_FLAGS, CLOUDS, *COMPANIONS, *RUNNERS.values())
