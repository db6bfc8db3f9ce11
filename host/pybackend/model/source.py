"""What a model is loaded from: its directory and its configuration, as they were read for a load."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pybackend.author_files import is_file_beneath
from pybackend.errors import ModelLoadError
from pybackend.model.fingerprint import Fingerprint
from pybackend.modelconfig.model_directory import similar_file
from pybackend.modelconfig.options import process_group_of
from pybackend.modelconfig.schema import ModelConfig, full_name
from pybackend.modelconfig.traffic import TRAFFIC_KEYS
from pybackend.sandbox.grant import Grant

NO_VERSION = -1
"""In place of a version's number while the load has not chosen the versions to serve."""

_INSTANCES = "instance_group"


@dataclass(frozen=True)
class ModelSource:
    """A model's directory as it was read for a load; then, for each version that the load serves, that version of it.

    No code of the model has run, and none can change this. So what decides about a model's rights, environment and
    processes is read from here alone; :class:`pybackend.model.version_loader.CompletedVersion` has what the model has
    completed, apart from this. What all models share is in :class:`pybackend.model.host.ModelHost`.

    Attributes:
        config: read from disk or from the load request, not completed by the model.
        backend_file: code of a Python-based backend, None for a model with its own code.
        environment_path: the environment that it names, or that its backend brings; None for the host's own Python.
        bounds: upper limits on its rights, all of which apply; empty if the operator installed the model.
        is_brought: True if all files of its directory came with the load request.
        is_as_installed: True if neither its files nor its configuration came with the load request.
        namespace: of the model; ``""`` on a server without namespaces.
        versions: those that the directory has.
        files: those of the directory, as they were before any of them was read; of a version, those that affect it.
            None if nothing will be compared with them.
        outside: stamps of the file to import and of the environment, which may lie outside the directory.
    """

    directory: Path
    config: ModelConfig
    version: int = NO_VERSION
    backend_file: Path | None = None
    environment_path: Path | None = None
    bounds: tuple[Grant, ...] = ()
    is_brought: bool = False
    is_as_installed: bool = True
    namespace: str = ""
    versions: Collection[int] = ()
    files: Fingerprint | None = None
    outside: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def full_name(self) -> str:
        """The model's full name, for messages, and wherever models are told apart by name."""
        return full_name(self.namespace, self.name)

    @property
    def version_directory(self) -> Path:
        return self.directory / str(self.version)

    @property
    def model_file(self) -> Path:
        return self.backend_file or self.version_directory / self.config.default_model_filename

    def check_model_file(self) -> None:
        """Check that the file to import exists. Blocking: not for the event loop."""
        try:
            if self.backend_file is not None:
                found = self.backend_file.is_file()
            else:
                found = is_file_beneath(self.directory, f"{self.version}/{self.config.default_model_filename}")
        except OSError as error:
            raise ModelLoadError(
                f"cannot access {self.model_file}: {error.strerror}. The server's user must be able to enter the "
                "directories on the way to it"
            ) from error
        if not found:
            similar = similar_file(self.model_file.parent, self.model_file.name)
            advice = f"rename {similar}" if similar else f"put the model's code there, in a file {self.model_file.name}"
            raise ModelLoadError(
                f"Failed to preinitialize Python stub: Python model file not found in '{self.model_file}': {advice}"
            )

    # Groups

    @property
    def may_join_group(self) -> bool:
        """Whether it may live in the process of a group: not if anything came with a load request, or it is bounded."""
        return self.is_as_installed and not self.bounds

    @property
    def joins_group(self) -> bool:
        """Whether it lives in the process of a group."""
        return self.may_join_group and bool(process_group_of(self.config))

    # Comparison with what was loaded before

    def equals(self, other: ModelSource) -> bool:
        """True if a version loaded from ``other`` would be identical to one loaded from this."""
        groups, theirs = (each.config.document.get(_INSTANCES) for each in (self, other))
        return groups == theirs and self.differs_in_instances(other)

    def differs_in_instances(self, other: ModelSource) -> bool:
        """True if a version loaded from ``other`` would be identical, except perhaps for its instances."""
        return self.files is not None and self._facts() == other._facts()

    def _facts(self) -> tuple[object, ...]:
        """All that makes a version but its instances, and the settings that only select versions."""
        document = self.config.document
        rest: dict[str, Any] = {
            field: value for field, value in document.items() if field not in {_INSTANCES, "version_policy"}
        }
        rest["parameters"] = {key: value for key, value in rest["parameters"].items() if key not in TRAFFIC_KEYS}
        return self.directory, self.bounds, self.joins_group, self.files, self.outside, rest

    def without(self, paths: Collection[str]) -> ModelSource:
        """The same, with a fingerprint that leaves some files out, given by their paths in the model's directory."""
        return replace(self, files=self.files.without(paths)) if paths and self.files is not None else self
