"""What a model would be loaded from now: its configuration, its versions, and whether that differs from what serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pybackend.cache.response_cache import ResponseCache
from pybackend.environment.cache import EnvironmentCache, default_cache_directory
from pybackend.environment.provider import EnvironmentProvider, environment_path
from pybackend.instance.debugging import DebuggerPorts
from pybackend.instance.resources import ResourceTable
from pybackend.model.source import ModelSource
from pybackend.modelconfig.loader import finish_ensemble, load_config
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.python_based import backend_file, default_environment
from pybackend.modelconfig.schema import ModelConfig
from pybackend.repository.fingerprint import Fingerprint, VersionFingerprint, file_stamp, fingerprint
from pybackend.repository.version_policy import choose_versions
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import DEFAULT_BACKEND_DIRECTORY

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadOptions:
    """How models are loaded; see :class:`pybackend.settings.Settings`.

    Attributes:
        auto_complete: models may complete their configuration.
        model_load_count: models that load at the same time.
        model_memory_limit_bytes: most input memory per model, and most output memory per instance.
        gpu_count: GPUs of this machine.
        backend_directory: holds backends that are written in Python.
        debugger: which models run under a debugger, and where that listens.
        explicit: models may be loaded and unloaded while the server runs.
        startup_models: names of the models to load at start, None for all.
        cache: for responses, None for none.
        host_policies: cores of the processes of instances, by the policy's name.
        resources: that instances must hold to execute, None for none.
        environments: makes the environments ready that models name.
        finalize_timeout_s: how long ``finalize`` may take when a version is replaced or unloaded, None for ever.
        sandbox: of the server, None if models are not confined.
    """

    auto_complete: bool
    model_load_count: int
    model_memory_limit_bytes: int
    gpu_count: int = 0
    backend_directory: Path = DEFAULT_BACKEND_DIRECTORY
    debugger: DebuggerPorts | None = None
    explicit: bool = False
    startup_models: tuple[str, ...] | None = None
    cache: ResponseCache | None = None
    host_policies: Mapping[str, frozenset[int]] = field(default_factory=dict)
    resources: ResourceTable | None = None
    environments: EnvironmentProvider = field(
        default_factory=lambda: EnvironmentProvider(EnvironmentCache(default_cache_directory()))
    )
    finalize_timeout_s: float | None = None
    sandbox: Sandbox | None = None


@dataclass(frozen=True)
class Candidate:
    """A version as it could be loaded.

    Attributes:
        source: what it would be loaded from.
        files: how the files looked that it depends on; None where nobody will ever compare them.
        code: the same of the file to import, which need not lie in the model's directory.
        environment: the same of the environment that it names, which need not lie there either.
    """

    source: ModelSource
    files: VersionFingerprint | None
    code: tuple[int, ...]
    environment: tuple[int, ...]

    def equals(self, other: Candidate) -> bool:
        """True if a model that was loaded from ``other`` is what would be loaded from this one."""
        return (
            self.files is not None
            and self.source.directory == other.source.directory
            and (self.files, self.code, self.environment) == (other.files, other.code, other.environment)
            and _without_policy(self.source.config) == _without_policy(other.source.config)
        )


def _without_policy(config: ModelConfig) -> dict[str, Any]:
    """The configuration without what only says which versions are served."""
    return {field: value for field, value in config.document.items() if field != "version_policy"}


@dataclass(frozen=True)
class ModelReading:
    """A model's directory as it is now, read for a load.

    Attributes:
        directory: the model's directory.
        config: not yet completed by the model.
        versions: those on disk.
        files: how they looked before any of them was read.
    """

    directory: Path
    config: ModelConfig
    versions: Collection[int]
    files: Fingerprint | None

    def candidates(self, options: LoadOptions) -> dict[int, Candidate]:
        """The versions to serve, by number, ascending.

        Raises:
            ModelLoadError: INVALID_ARG, the version policy leaves none, or an ensemble's configuration is wrong.
        """
        config, versions = self.config, self.versions
        if config.is_ensemble:
            config = finish_ensemble(config)
            if not versions:  # it has no files to put there, and version control drops empty directories
                log.warning(
                    "ensemble '%s' has no version directory in %s: it is version 1", config.name, self.directory
                )
                versions = (1,)
        served = choose_versions(config, versions)
        for warning in served.warnings:
            log.warning("%s", warning)
        return {version: self._candidate(config, version, options) for version in served.versions}

    def _candidate(self, config: ModelConfig, version: int, options: LoadOptions) -> Candidate:
        source = ModelSource(
            name=config.name,
            version=version,
            directory=self.directory,
            config=config,
            auto_complete=options.auto_complete,
            memory_limit_bytes=options.model_memory_limit_bytes,
            gpu_count=options.gpu_count,
            backend_file=None if config.is_ensemble else backend_file(config, options.backend_directory),
            cache=options.cache,
            host_policies=options.host_policies,
            resources=options.resources,
            debugger=options.debugger if options.debugger and options.debugger.debugs(config.name) else None,
            environments=options.environments,
            environment_path=self.environment_path(options.backend_directory),
            sandbox=options.sandbox,
        )
        files = None if self.files is None else self.files.of_version(version)
        return Candidate(
            source,
            files,
            () if config.is_ensemble else file_stamp(str(source.model_file)),
            () if source.environment_path is None else file_stamp(str(source.environment_path)),
        )

    def environment_path(self, backend_directory: Path) -> Path | None:
        """The environment that it names, or that its backend brings; None for the host's own Python."""
        if self.config.is_ensemble:
            return None
        text = self.config.parameters.get("EXECUTION_ENV_PATH")
        if text:
            return environment_path(text, self.directory)
        return default_environment(self.config, backend_directory)


async def read_model(directory: Path, options: LoadOptions, config_json: str | None = None) -> ModelReading:
    """Read a model's directory.

    Args:
        directory: its name is the model's.
        options: of this server.
        config_json: what to take in place of config.pbtxt.

    Raises:
        ModelLoadError: the configuration or the directory cannot be read.
    """
    files = await asyncio.to_thread(fingerprint, directory) if options.explicit else None
    config = load_config(
        directory,
        auto_complete=options.auto_complete,
        backend_directory=options.backend_directory,
        config_json=config_json,
    )
    scan = scan_versions(directory)
    for warning in scan.warnings:
        log.warning("%s", warning)
    reading = ModelReading(directory, config, tuple(scan.versions), files)
    options.environments.uses.note(directory, reading.environment_path(options.backend_directory))
    return reading
