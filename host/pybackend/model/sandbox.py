"""Makes a version's sandbox from its configuration and its source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pybackend.environment.environment import HOST_ENVIRONMENT
from pybackend.environment.provider import ModelEnvironment
from pybackend.errors import ModelLoadError
from pybackend.model.host import ModelHost
from pybackend.model.source import ModelSource
from pybackend.modelconfig.full_name import full_name
from pybackend.modelconfig.instances import InstanceSpec
from pybackend.modelconfig.options import start_options_of
from pybackend.modelconfig.sandbox import sandbox_options_of
from pybackend.sandbox.model_sandbox import ModelFiles, ModelSandbox, sandbox_of


async def open_sandbox(
    source: ModelSource, host: ModelHost, environment: ModelEnvironment | None, planned: Sequence[InstanceSpec]
) -> ModelSandbox | None:
    """Open the sandbox of a version, ready for its first instance; None if the version is not confined.

    Args:
        source: the version's source.
        host: the server.
        environment: the environment that it runs in, None for the host's own Python.
        planned: its instances, according to its configuration.

    Raises:
        ModelLoadError: the configuration requests something that is forbidden or does not exist.
    """
    # Uses the configuration as written on disk: changes by the model's own code are not trusted.
    options = sandbox_options_of(source.config, source.directory)
    if host.sandbox is None:
        return None
    if source.namespace and options.model_control is not None:
        in_own = [full_name(source.namespace, name) for name in options.model_control]
        options = replace(options, model_control=(*options.model_control, *in_own))
    usual, own = host.sandbox.settings.level, source.directory if source.is_brought else None
    for bound in source.bounds:
        options = await asyncio.to_thread(bound.bounded, source.full_name, options, usual, own, source.config.source)
    required = {layer for bound in source.bounds for layer in bound.in_force}
    files = ModelFiles(
        directory=source.directory,
        version_directory=source.version_directory,
        model_file=source.model_file,
        environment=HOST_ENVIRONMENT if environment is None else environment.environment,
        of_backend=source.backend_file is not None,
        gpu=any(spec.kind in {"GPU", "MODEL"} for spec in planned),
        sharing=_sharing(source, host),
    )
    sandbox = sandbox_of(host.sandbox, source.full_name, options, files, source.config.source, required)
    if sandbox is not None:
        try:
            await asyncio.to_thread(sandbox.prepare, 1)
        except ModelLoadError:
            await sandbox.close()
            raise
    return sandbox


def _sharing(source: ModelSource, host: ModelHost) -> Callable[[], Collection[Path]] | None:
    if source.environment_path is None or not start_options_of(source.config).zygote:
        return None
    return partial(host.environments.uses.directories, source.environment_path)
