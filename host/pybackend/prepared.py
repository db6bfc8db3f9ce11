"""What a server needs before its loop runs: the contents of its repositories, and the means to start processes."""

import asyncio
from collections.abc import Callable

from pybackend.pools import read_pools
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher
from pybackend.process.orphans import Orphans
from pybackend.repository.layout import RepositoryScan, scan_repositories
from pybackend.repository.mirror.mirrors import Mirrors
from pybackend.settings import Settings
from pybackend_wire.confinement import STRICT

Serve = Callable[[Settings, RepositoryScan, StubLauncher, Mirrors | None], int]
"""Runs a server on these and returns its exit status."""


def serve_prepared(settings: Settings, serve: Serve, *, own_process: bool = True) -> int:
    """Prepare, serve, and leave nothing behind.

    Unless it is its ``own_process``, the process stays as it is: orphans do not become its children, and stubs are started
    instead of forked. Raises PybackendError if the server cannot start.
    """
    cloud = settings.cloud_repositories
    if not cloud.urls:
        return _with_launcher(settings, None, serve, own_process=own_process)
    mirrors = Mirrors(cloud.urls, cloud.cache_directory)
    asyncio.run(mirrors.open())
    try:
        return _with_launcher(settings.with_local(mirrors.directories), mirrors, serve, own_process=own_process)
    finally:
        mirrors.close()


def _with_launcher(settings: Settings, mirrors: Mirrors | None, serve: Serve, *, own_process: bool) -> int:
    scan = scan_repositories(
        settings.repositories,
        settings.model_directories,
        {} if mirrors is None else mirrors.listings,
        namespacing=settings.model_namespacing,
        pools=None if settings.pools_file is None else read_pools(settings.pools_file),
    )
    orphans = Orphans(adopts=own_process)
    launcher = StubLauncher(stage_bundle(), orphans=orphans, forks=settings.zygotes)
    first = len(scan.models) if settings.models.startup_models is None else len(settings.models.startup_models)
    if first and settings.sandbox.level != STRICT:
        launcher.start_ahead()
    try:
        return serve(settings, scan, launcher, mirrors)
    finally:
        launcher.close()
        orphans.sweep_all()
