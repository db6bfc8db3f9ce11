"""What confines a version, from its configuration and what it is loaded from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from pybackend.environment.environment import HOST_ENVIRONMENT
from pybackend.environment.provider import ModelEnvironment
from pybackend.errors import ModelLoadError
from pybackend.model.source import ModelSource
from pybackend.modelconfig.instances import InstanceSpec
from pybackend.modelconfig.options import start_options_of
from pybackend.modelconfig.sandbox import sandbox_options_of
from pybackend.sandbox.model_sandbox import ModelFiles, ModelSandbox, sandbox_of


async def open_sandbox(
    source: ModelSource, environment: ModelEnvironment | None, planned: Sequence[InstanceSpec]
) -> ModelSandbox | None:
    """The sandbox of a version, ready for its first instance; None if nothing confines it.

    Args:
        source: of the version.
        environment: that it runs in, None for the host's own Python.
        planned: its instances, as far as its configuration says.

    Raises:
        ModelLoadError: its configuration asks for what it must not have, or what does not exist.
    """
    # From the configuration as it is written: what the model's own code makes of it comes too late to be trusted.
    options = sandbox_options_of(source.config, source.directory)
    if source.sandbox is None:
        return None
    files = ModelFiles(
        directory=source.directory,
        version_directory=source.version_directory,
        model_file=source.model_file,
        environment=HOST_ENVIRONMENT if environment is None else environment.environment,
        of_backend=source.backend_file is not None,
        gpu=any(spec.kind in {"GPU", "MODEL"} for spec in planned),
        sharing=_sharing(source),
    )
    sandbox = sandbox_of(source.sandbox, source.name, options, files, source.config.source)
    if sandbox is not None:
        try:
            await asyncio.to_thread(sandbox.prepare, 1)
        except ModelLoadError:
            await sandbox.close()
            raise
    return sandbox


def _sharing(source: ModelSource) -> Callable[[], Collection[Path]] | None:
    if source.environments is None or source.environment_path is None or not start_options_of(source.config).zygote:
        return None
    return partial(source.environments.uses.directories, source.environment_path)
