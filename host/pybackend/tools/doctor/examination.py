"""The whole examination, layer by layer."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from pybackend.environment.cache import default_cache_directory
from pybackend.errors import PybackendError, ServerError
from pybackend.repository.layout import RepositoryScan, scan_repositories
from pybackend.repository.mirror.mirrors import Mirrors
from pybackend.repository.model_files import ModelFiles
from pybackend.repository.names import ModelNames
from pybackend.settings import Settings
from pybackend.tools.doctor import files, machine, models, ports, trial
from pybackend.tools.doctor.finding import Finding, Status, fail
from pybackend.tools.doctor.host import model_host


async def examine(settings: Settings) -> list[Finding]:
    """Check every layer; checks that need a process are skipped where none can run.

    ``settings``: of the server that is to run. Without repositories only the machine is examined.
    """
    findings: list[Finding] = []
    process_count = 0
    if settings.place_names:
        findings, process_count = await _examine_server(settings)
    machines = [machine.python(), machine.kernel(), machine.descriptors(process_count), machine.processes()]
    machines.append(machine.shared_memory())
    if all(finding.status is not Status.FAIL for finding in machines):
        machines += await trial.examine()
    cache = (settings.environments.cache_directory or default_cache_directory()).absolute()
    return [*machines, machine.environment_cache(cache), machine.packing(), machine.gpus(), *findings]


async def _examine_server(settings: Settings) -> tuple[list[Finding], int]:
    """Check what the settings name; returns the findings and the number of processes that models would have."""
    findings = [*ports.examine(settings.http, settings.grpc), *files.examine(settings)]
    cloud = settings.cloud_repositories
    try:
        mirrors = Mirrors(cloud.urls, cloud.cache_directory)
        await mirrors.open()
        settings = settings.with_local(mirrors.directories)
        scan = scan_repositories(
            settings.repositories,
            settings.model_directories,
            mirrors.listings,
            namespacing=settings.model_namespacing,
        )
    except ServerError as error:
        return [*findings, fail("repository", "cannot be served", str(error))], 0
    try:
        return await _examine_models(settings, scan, mirrors, findings)
    finally:
        await asyncio.to_thread(mirrors.close)


async def _examine_models(
    settings: Settings, scan: RepositoryScan, mirrors: Mirrors, findings: list[Finding]
) -> tuple[list[Finding], int]:
    """Add the findings about models. Those in cloud storage are downloaded, and stay in the cache for the server."""
    with ExitStack() as stack:
        try:
            host = stack.enter_context(model_host(settings))
        except PybackendError:  # the trial says so
            return findings, 0
        files = ModelFiles(
            scan, mirrors, settings.models.config_name, lambda _directory: (), ModelNames({}, scan.namespaces)
        )
        found, count = await models.examine(scan, host, files, all_must_load=settings.exit_on_error)
    return [*findings, *found], count
