"""Reads a model's directory for a load, and chooses the versions of it that are served."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from pybackend.apart import apart
from pybackend.author_files import open_file_beneath
from pybackend.environment.provider import environment_path
from pybackend.errors import ErrorCode, ModelConfigError, ModelLoadError
from pybackend.model.fingerprint import file_stamp, fingerprint
from pybackend.model.host import ModelHost
from pybackend.model.source import ModelSource
from pybackend.modelconfig.backends import backend_file, default_environment, require_framework
from pybackend.modelconfig.bounds import MOST_SERVED_VERSIONS
from pybackend.modelconfig.known_backends import PYTHON, known_backend
from pybackend.modelconfig.loader import finish_ensemble, load_config
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.schema import ModelConfig, VersionChoice
from pybackend.modelconfig.traffic import configured_traffic
from pybackend.sandbox.grant import Grant

log = logging.getLogger(__name__)


async def read_model(
    directory: Path,
    host: ModelHost,
    config_json: str | None = None,
    *,
    is_brought: bool = False,
    namespace: str = "",
) -> ModelSource:
    """Read a model's directory. ``is_brought``: it was made from files that came with the load request."""
    source = await apart(files_of(directory), _read, directory, host, config_json, is_brought=is_brought)
    return replace(source, namespace=namespace)


async def served_versions(
    source: ModelSource, host: ModelHost, bounds: tuple[Grant, ...] = ()
) -> dict[int, ModelSource]:
    """The versions of a model to serve, by number, ascending.

    All ``bounds`` limit their rights; there are none if the operator installed them.
    """
    return await apart(files_of(source.directory), _versions, source, host, bounds)


def files_of(directory: Path) -> str:
    """The name for a model's files in messages."""
    return f"the files of model '{directory.name}'"


def _read(directory: Path, host: ModelHost, config_json: str | None, *, is_brought: bool) -> ModelSource:
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
    return ModelSource(
        directory,
        config,
        environment_path=_environment(directory, config, host),
        is_brought=is_brought,
        is_as_installed=config_json is None and not is_brought,
        versions=tuple(scan.versions),
        files=files,
    )


def _versions(source: ModelSource, host: ModelHost, bounds: tuple[Grant, ...]) -> dict[int, ModelSource]:
    config, versions = source.config, source.versions
    if config.is_ensemble:
        config = finish_ensemble(config)
        if not versions:  # ensembles need no files there, and version control drops empty directories
            log.warning(
                "ensemble '%s' has no version directory in %s: it is version 1", source.full_name, source.directory
            )
            versions = (1,)
    served = choose_versions(config, versions)
    configured_traffic(config, served.versions)  # it is wrong before a version is loaded
    for warning in served.warnings:
        log.warning("%s", warning)
    code = None if config.is_ensemble else backend_file(config, host.backends)
    source = replace(source, config=config, backend_file=code, bounds=bounds)
    return {version: _of_version(source, version) for version in served.versions}


def _of_version(source: ModelSource, version: int) -> ModelSource:
    files = None if source.files is None else source.files.of_version(version)
    source = replace(source, version=version, files=files)
    code = () if source.config.is_ensemble else file_stamp(str(source.model_file))
    environment = () if source.environment_path is None else file_stamp(str(source.environment_path))
    return replace(source, outside=(code, environment))


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
    """Compare files with the parameters ``MD5:<path>`` of the repository agent ``checksum``.

    Blocking: it reads the files.

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
