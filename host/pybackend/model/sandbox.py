"""What confines a version, from its configuration and what it is loaded from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pybackend.environment.environment import HOST_ENVIRONMENT, Environment
from pybackend.model.source import ModelSource
from pybackend.modelconfig.instances import InstanceSpec
from pybackend.modelconfig.sandbox import sandbox_options_of
from pybackend.sandbox.model_sandbox import ModelFiles, ModelSandbox, sandbox_of


async def open_sandbox(
    source: ModelSource, environment: Environment | None, planned: Sequence[InstanceSpec]
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
        environment=environment or HOST_ENVIRONMENT,
        of_backend=source.backend_file is not None,
        gpu=any(spec.kind in {"GPU", "MODEL"} for spec in planned),
    )
    sandbox = sandbox_of(source.sandbox, source.name, options, files, source.config.source)
    if sandbox is not None:
        await asyncio.to_thread(sandbox.prepare, 1)
    return sandbox
