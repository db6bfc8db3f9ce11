"""What a server needs before its loop runs: the contents of its repositories, and the means to start processes."""

import asyncio
from collections.abc import Callable

from pybackend.plugins import STORAGE
from pybackend.pools import read_pools
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher
from pybackend.process.orphans import Orphans
from pybackend.repository.layout import RepositoryScan, scan_repositories
from pybackend.repository.remote import RemoteRepositories
from pybackend.settings import CloudRepositorySettings, Settings
from pybackend_wire.confinement import STRICT

Serve = Callable[[Settings, RepositoryScan, StubLauncher, RemoteRepositories], int]
"""Runs a server on these and returns its exit status."""


def serve_prepared(settings: Settings, serve: Serve, *, own_process: bool = True) -> int:
    """Prepare, serve, and leave nothing behind.

    Unless it is its ``own_process``, the process stays as it is: orphans do not become its children, and stubs are
    started instead of forked. Raises PybackendError if the server cannot start.
    """
    remote = remote_repositories(settings.cloud_repositories)
    asyncio.run(remote.open())
    try:
        return _with_launcher(settings.with_local(remote.directories), remote, serve, own_process=own_process)
    finally:
        remote.close()


def remote_repositories(settings: CloudRepositorySettings) -> RemoteRepositories:
    """The repositories that are not on this machine; to be opened.

    Raises ServerError: they cannot be reached from here.
    """
    if not settings.urls:
        return RemoteRepositories()
    return STORAGE.load().repositories(settings.urls, settings.cache_directory)


def _with_launcher(settings: Settings, remote: RemoteRepositories, serve: Serve, *, own_process: bool) -> int:
    scan = scan_repositories(
        settings.repositories,
        settings.model_directories,
        remote.listings,
        namespacing=settings.model_namespacing,
        pools=None if settings.pools_file is None else read_pools(settings.pools_file),
    )
    orphans = Orphans(adopts=own_process)
    launcher = StubLauncher(
        stage_bundle(), orphans=orphans, forks=settings.zygotes, warns_of_bytes=settings.warns_of_bytes
    )
    first = len(scan.models) if settings.models.startup_models is None else len(settings.models.startup_models)
    if first and settings.sandbox.level != STRICT:
        launcher.start_ahead()
    try:
        return serve(settings, scan, launcher, remote)
    finally:
        launcher.close()
        orphans.sweep_all()
