"""Makes the server's interface for its models from the operator's settings."""

import sys

from pybackend.environment.cache import EnvironmentCache, cache_places, default_cache_directory
from pybackend.environment.provider import EnvironmentProvider
from pybackend.environment.specification import pack_in_process
from pybackend.gpus import find_gpus
from pybackend.inference.pending import QueuedBytes
from pybackend.instance.debugging import DebuggerPorts, Terminal
from pybackend.instance.resources import ResourceTable
from pybackend.instance.settings import DisconnectSlowClients, no_clients
from pybackend.ipc.arena import TensorBudget
from pybackend.model.cache.response_cache import ResponseCache
from pybackend.model.host import ModelHost
from pybackend.modelconfig.backends import BackendPlaces, shipped_backends
from pybackend.modelconfig.signature import ExtrasOf
from pybackend.process.caller import Caller
from pybackend.process.launcher import StubLauncher
from pybackend.sandbox.runtime_directory import runtime_places
from pybackend.sandbox.sandbox import Sandbox
from pybackend.sandbox.shell_runner import ShellRunner
from pybackend.settings import EnvironmentSettings, Settings


def make_host(
    settings: Settings,
    launcher: StubLauncher,
    extras_of: ExtrasOf,
    cache: ResponseCache | None = None,
    disconnect_slow_clients: DisconnectSlowClients = no_clients,
) -> ModelHost:
    """Make the host of models; its sandbox must be closed at the end."""
    kept = cache_places(settings.environments.cache_directory or default_cache_directory())
    sandbox = Sandbox(settings.sandbox, settings.places, launcher.bundle, [*kept, *settings.cloud_repositories.kept_in])
    return ModelHost(
        launcher=launcher,
        extras_of=extras_of,
        settings=settings.models,
        metrics=settings.metrics,
        gpus=find_gpus(),
        # The stubs' copy: every model's process can read it, wherever pybackend is installed.
        backends=BackendPlaces(
            settings.backend_directory, launcher.bundle / shipped_backends().name, settings.backend_settings
        ),
        debugger=DebuggerPorts(settings.debug),
        terminal=Terminal(sys.stdin.fileno(), sys.stdout.fileno()) if settings.lends_terminal else None,
        cache=cache,
        queued_bytes=None if settings.max_queued_bytes is None else QueuedBytes(settings.max_queued_bytes),
        resources=None if settings.resource_limits is None else ResourceTable(settings.resource_limits),
        environments=_environments(settings.environments, sandbox),
        sandbox=sandbox,
        runtime_places=runtime_places(launcher.bundle.parent),
        disconnect_slow_clients=disconnect_slow_clients,
        tensor_budget=TensorBudget(settings.tensor_memory_limit_bytes),
        caller=None if settings.caller is None else Caller(settings.caller, settings.repositories[0]),
    )


def _environments(settings: EnvironmentSettings, sandbox: Sandbox) -> EnvironmentProvider:
    directory = settings.cache_directory or default_cache_directory()
    cache = EnvironmentCache(directory, settings.cache_limit_bytes)
    packer = pack_in_process if settings.pack_at_load else None
    return EnvironmentProvider(cache, packer, ShellRunner(sandbox).run)
