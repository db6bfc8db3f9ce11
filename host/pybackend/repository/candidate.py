"""Describes the versions that a load would use: which the policy chooses, and how they differ from the serving ones."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pybackend.apart import apart
from pybackend.author_files import open_file_beneath
from pybackend.environment.provider import environment_path
from pybackend.errors import ErrorCode, ModelConfigError, ModelLoadError
from pybackend.model.groups import joins_group
from pybackend.model.host import ModelHost
from pybackend.model.source import ModelSource
from pybackend.modelconfig.backends import backend_file, default_environment, require_framework
from pybackend.modelconfig.bounds import MOST_SERVED_VERSIONS
from pybackend.modelconfig.known_backends import PYTHON, known_backend
from pybackend.modelconfig.loader import finish_ensemble, load_config
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.schema import ModelConfig, VersionChoice, full_name
from pybackend.modelconfig.traffic import TRAFFIC_KEYS, configured_traffic
from pybackend.repository.fingerprint import Fingerprint, VersionFingerprint, file_stamp, fingerprint
from pybackend.sandbox.grant import Grant

log = logging.getLogger(__name__)

_INSTANCES = "instance_group"


@dataclass(frozen=True)
class Candidate:
    """A version that could be loaded."""

    source: ModelSource  # its files and configuration
    files: VersionFingerprint | None  # fingerprint of its files; None if nothing will be compared with it
    code: tuple[int, ...]  # stamp of the file to import, which may lie outside the model's directory
    environment: tuple[int, ...]  # stamp of its environment, which may also lie outside

    def equals(self, other: Candidate) -> bool:
        """True if a version loaded from ``other`` would be identical to one loaded from this candidate."""
        return self.differs_in_instances(other) and self._groups == other._groups

    def differs_in_instances(self, other: Candidate) -> bool:
        """True if a version loaded from ``other`` would be identical, except perhaps for its instances."""
        return (
            self.files is not None
            and self.source.directory == other.source.directory
            and self.source.bounds == other.source.bounds
            and joins_group(self.source) == joins_group(other.source)
            and (self.files, self.code, self.environment) == (other.files, other.code, other.environment)
            and self._rest == other._rest
        )

    def without(self, paths: Collection[str]) -> Candidate:
        """The same, with a fingerprint that leaves some files out, given by their paths in the model's directory."""
        return self if self.files is None else replace(self, files=self.files.without(self.source.version, paths))

    @property
    def _groups(self) -> Any:
        return self.source.config.document.get(_INSTANCES)

    @property
    def _rest(self) -> dict[str, Any]:
        """The configuration without its instances, and without the settings that only select versions."""
        document = self.source.config.document
        rest = {field: value for field, value in document.items() if field not in {_INSTANCES, "version_policy"}}
        rest["parameters"] = {key: value for key, value in rest["parameters"].items() if key not in TRAFFIC_KEYS}
        return rest


@dataclass(frozen=True)
class ModelReading:
    """The current contents of a model's directory, read for a load."""

    directory: Path
    config: ModelConfig  # read from disk or the load request, not yet completed by the model
    versions: Collection[int]
    files: Fingerprint | None  # fingerprint taken before any file was read
    # the environment that it names, or that its backend brings; None for the host's own Python
    environment: Path | None
    is_brought: bool = False  # True if the directory was made from files that came with the load request
    is_as_installed: bool = True  # False if that, or the configuration, came with the load request
    namespace: str = ""  # of the model; ``""`` on a server without namespaces

    @property
    def full_name(self) -> str:
        return full_name(self.namespace, self.config.name)

    def candidates(self, host: ModelHost, bounds: tuple[Grant, ...] = ()) -> dict[int, Candidate]:
        config, versions = self.config, self.versions
        if config.is_ensemble:
            config = finish_ensemble(config)
            if not versions:  # ensembles need no files there, and version control drops empty directories
                log.warning(
                    "ensemble '%s' has no version directory in %s: it is version 1", self.full_name, self.directory
                )
                versions = (1,)
        served = choose_versions(config, versions)
        configured_traffic(config, served.versions)  # it is wrong before a version is loaded
        for warning in served.warnings:
            log.warning("%s", warning)
        return {version: self._candidate(config, version, host, bounds) for version in served.versions}

    def _candidate(self, config: ModelConfig, version: int, host: ModelHost, bounds: tuple[Grant, ...]) -> Candidate:
        source = ModelSource(
            name=config.name,
            version=version,
            directory=self.directory,
            config=config,
            backend_file=None if config.is_ensemble else backend_file(config, host.backends),
            environment_path=self.environment,
            bounds=bounds,
            is_brought=self.is_brought,
            is_as_installed=self.is_as_installed,
            namespace=self.namespace,
        )
        files = None if self.files is None else self.files.of_version(version)
        return Candidate(
            source,
            files,
            () if config.is_ensemble else file_stamp(str(source.model_file)),
            () if source.environment_path is None else file_stamp(str(source.environment_path)),
        )

    def note_environment(self, host: ModelHost) -> None:
        """Register this model's environment, so that models sharing it are known."""
        host.environments.uses.note(self.directory, self.environment)


async def read_model(
    directory: Path,
    host: ModelHost,
    config_json: str | None = None,
    *,
    is_brought: bool = False,
    namespace: str = "",
) -> ModelReading:
    """Read a model's directory. ``is_brought``: it was made from files that came with the load request."""
    reading = await apart(files_of(directory), _read, directory, host, config_json, is_brought=is_brought)
    return replace(reading, namespace=namespace)


async def candidates_of(reading: ModelReading, host: ModelHost, bounds: tuple[Grant, ...] = ()) -> dict[int, Candidate]:
    """The versions of a model to serve, by number, ascending.

    All ``bounds`` limit their rights; there are none if the operator installed them.
    """
    return await apart(files_of(reading.directory), reading.candidates, host, bounds)


def files_of(directory: Path) -> str:
    """The name for a model's files in messages."""
    return f"the files of model '{directory.name}'"


def _read(directory: Path, host: ModelHost, config_json: str | None, *, is_brought: bool) -> ModelReading:
    files = fingerprint(directory) if host.settings.tracks_files else None
    config = load_config(
        directory,
        auto_complete=host.settings.auto_complete,
        backends=host.backends,
        config_json=config_json,
        config_name=host.settings.config_name,
    )
    check_digests(config, directory)
    scan = scan_versions(directory)
    for warning in scan.warnings:
        log.warning("%s", warning)
    environment = _environment(directory, config, host)
    is_as_installed = config_json is None and not is_brought
    return ModelReading(directory, config, tuple(scan.versions), files, environment, is_brought, is_as_installed)


def _environment(directory: Path, config: ModelConfig, host: ModelHost) -> Path | None:
    """The environment that the model names, or that its backend has; None for the host's own Python."""
    if config.is_ensemble:
        return None
    text = config.parameters.get("EXECUTION_ENV_PATH")
    if text:
        return environment_path(text, directory)
    environment = default_environment(config, host.backends)
    if environment is None:
        require_framework(config, host.backends)
    return environment


_MD5 = "MD5"
_CHUNK_BYTES = 1024 * 1024


def check_digests(config: ModelConfig, directory: Path) -> None:
    """Compare files with the parameters ``MD5:<path>`` of the repository agent ``checksum``. Blocking: it reads the files.

    It shows that a copy is complete. It does not protect against somebody who can change the configuration too.
    """
    for agent in config.document.get("model_repository_agents", {}).get("agents", ()):
        for key, expected in agent["parameters"].items():
            kind, _, name = key.partition(":")
            if kind != _MD5 or not name:
                raise ModelConfigError(
                    f"model '{config.name}': agent 'checksum' has the parameter '{key}', and knows only "
                    f"'{_MD5}:<path in the model's folder>' ({config.source})"
                )
            found = _digest(config, directory, name)
            if found != expected.strip().lower():
                raise ModelConfigError(
                    f"model '{config.name}': Mismatched MD5 hash for file {name}: it is {found}, and agent 'checksum' "
                    f"expects {expected}. Copy the file again, or correct the digest ({config.source})"
                )


def _digest(config: ModelConfig, directory: Path, name: str) -> str:
    try:
        with open_file_beneath(directory, name) as file:
            digest = hashlib.md5(usedforsecurity=False)
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest()
    except OSError as error:
        raise ModelConfigError(
            f"model '{config.name}': agent 'checksum' cannot read {directory / name}: {error.strerror} ({config.source})"
        ) from None


def _file_of(config: ModelConfig) -> str:
    """The name of the file in a version of a model without Python code, for a message."""
    files = known_backend(config.backend).files
    return config.default_model_filename or (files[0] if files else "its files")


@dataclass(frozen=True, slots=True)
class ServedVersions:
    """The versions that a version policy selects."""

    versions: tuple[int, ...]  # ascending, at least one
    warnings: tuple[str, ...] = ()  # one sentence each, for the log


def choose_versions(config: ModelConfig, available: Collection[int]) -> ServedVersions:
    """Apply a model's version policy to the versions on disk."""
    policy = config.version_policy
    on_disk = sorted(available)
    missing: list[int] = []
    if policy.choice is VersionChoice.SPECIFIC:
        wanted = set(policy.versions)
        chosen = [version for version in on_disk if version in wanted]
        missing = sorted(wanted.difference(on_disk))
    elif policy.choice is VersionChoice.ALL:
        chosen = on_disk
    else:
        chosen = on_disk[-policy.num_versions :]
    if not chosen:
        there = f"only {', '.join(map(str, on_disk))}" if on_disk else "no version directory, such as '1',"
        what = "the code" if config.backend == PYTHON else _file_of(config)
        policy_advice = "change version_policy, or add a version" if on_disk else f"put {what} into {config.name}/1/"
        raise ModelLoadError(
            f"at least one version must be available under the version policy of model '{config.name}': "
            f"there is {there} in the model's directory: {policy_advice}",
            ErrorCode.INVALID_ARG,
        )
    if len(chosen) > MOST_SERVED_VERSIONS:
        raise ModelLoadError(
            f"the version policy of model '{config.name}' chooses {len(chosen)} versions, and the most is "
            f"{MOST_SERVED_VERSIONS}",
            ErrorCode.INVALID_ARG,
        )
    return ServedVersions(
        tuple(chosen),
        tuple(
            f"version {version} is specified for model '{config.name}', but the version directory is not present"
            for version in missing
        ),
    )
