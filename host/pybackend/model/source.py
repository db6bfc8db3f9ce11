"""The files and configuration that a model version is loaded from."""

from dataclasses import dataclass
from pathlib import Path

from pybackend.author_files import is_file_beneath
from pybackend.errors import ModelLoadError
from pybackend.modelconfig.model_directory import similar_file
from pybackend.modelconfig.schema import ModelConfig, full_name
from pybackend.sandbox.grant import Grant


@dataclass(frozen=True)
class ModelSource:
    """The properties of one version; :class:`pybackend.model.host.ModelHost` has those that all models share.

    Attributes:
        directory: the model directory.
        config: read from disk, not yet completed by the model.
        backend_file: code of a Python-based backend, None for a model with its own code.
        environment_path: None if the model runs on the host's own Python.
        bounds: upper limits on its rights, all of which apply; empty if the operator installed the model.
        is_brought: True if all files of its directory came with the load request.
        is_as_installed: True if neither its files nor its configuration came with the load request.
        namespace: of the model; ``""`` on a server without namespaces.
    """

    name: str
    version: int
    directory: Path
    config: ModelConfig
    backend_file: Path | None = None
    environment_path: Path | None = None
    bounds: tuple[Grant, ...] = ()
    is_brought: bool = False
    is_as_installed: bool = True
    namespace: str = ""

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
