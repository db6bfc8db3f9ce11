"""Selects a model's version directories to serve, once per load."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.modelconfig.bounds import MOST_SERVED_VERSIONS
from pybackend.modelconfig.schema import ModelConfig, VersionChoice


@dataclass(frozen=True, slots=True)
class ServedVersions:
    """The versions that a version policy selects.

    Attributes:
        versions: ascending, at least one.
        warnings: one sentence each, for the log.
    """

    versions: tuple[int, ...]
    warnings: tuple[str, ...] = ()


def choose_versions(config: ModelConfig, available: Collection[int]) -> ServedVersions:
    """Apply a model's version policy to the versions on disk.

    Raises:
        ModelLoadError: INVALID_ARG, the policy selects no version.
    """
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
        policy_advice = "change version_policy, or add a version" if on_disk else f"put the code into {config.name}/1/"
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
