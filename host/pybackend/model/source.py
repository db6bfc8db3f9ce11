"""What a version of a model is loaded from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.cache.response_cache import ResponseCache
from pybackend.environment.provider import EnvironmentProvider
from pybackend.errors import ModelLoadError
from pybackend.instance.debugging import DebuggerPorts
from pybackend.instance.resources import ResourceTable
from pybackend.modelconfig.schema import ModelConfig
from pybackend.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class ModelSource:
    """What a version is loaded from.

    Attributes:
        name: the model's name.
        version: its decimal version.
        directory: the model directory.
        config: read, not yet completed by the model.
        auto_complete: True if the model may complete it.
        memory_limit_bytes: most input memory of the model, and most output memory of each instance.
        gpu_count: GPUs of this machine.
        backend_file: the code of a Python-based backend, None for a model that brings its own.
        debugger: the ports where its processes listen to debuggers, None where nobody debugs.
        cache: for responses, None if the server has none.
        host_policies: cores of the processes of instances, by the policy's name.
        resources: that instances must hold to execute, None if they need none.
        environments: makes the environment ready that the model names.
        environment_path: of that environment, None if the model runs on the host's own Python.
        sandbox: of the server, None if models are not confined.
    """

    name: str
    version: int
    directory: Path
    config: ModelConfig
    auto_complete: bool
    memory_limit_bytes: int
    gpu_count: int
    backend_file: Path | None = None
    debugger: DebuggerPorts | None = None
    cache: ResponseCache | None = None
    host_policies: Mapping[str, frozenset[int]] = field(default_factory=dict)
    resources: ResourceTable | None = None
    environments: EnvironmentProvider | None = None
    environment_path: Path | None = None
    sandbox: Sandbox | None = None

    @property
    def version_directory(self) -> Path:
        """Where the files of this version lie."""
        return self.directory / str(self.version)

    @property
    def model_file(self) -> Path:
        """The file to import."""
        return self.backend_file or self.version_directory / self.config.default_model_filename

    def check_model_file(self) -> None:
        """See that the file to import is there.

        Raises:
            ModelLoadError: it is not, or nobody can tell.
        """
        try:
            found = self.model_file.is_file()
        except OSError as error:
            raise ModelLoadError(
                f"{self.model_file} cannot be looked for: {error.strerror}. The user that the server runs as must be able to "
                "enter the directories on the way there"
            ) from error
        if not found:
            raise ModelLoadError(
                f"Failed to preinitialize Python stub: Python model file not found in '{self.model_file}'"
            )
