"""The whole examination, layer by layer."""

from __future__ import annotations

from pybackend.calls.inner_door import InnerDoor
from pybackend.calls.services import ModelServices
from pybackend.doctor import machine, models, ports, trial
from pybackend.doctor.finding import Finding, Status, fail
from pybackend.environment.cache import default_cache_directory
from pybackend.errors import PybackendError, ServerError
from pybackend.model.host_settings import make_host
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher
from pybackend.repository.layout import scan_repositories
from pybackend.settings import Settings


async def examine(settings: Settings) -> list[Finding]:
    """Check every layer; checks that need a process are skipped where none can run.

    Args:
        settings: of the server that is to run. Without repositories only the machine is examined.
    """
    findings: list[Finding] = []
    process_count = 0
    if settings.repositories:
        findings, process_count = await _examine_server(settings)
    machines = [machine.python(), machine.kernel(), machine.descriptors(process_count), machine.processes()]
    machines.append(machine.shared_memory())
    if all(finding.status is not Status.FAIL for finding in machines):
        machines += await trial.examine()
    cache = (settings.environments.cache_directory or default_cache_directory()).absolute()
    return [*machines, machine.environment_cache(cache), machine.packing(), machine.gpus(), *findings]


async def _examine_server(settings: Settings) -> tuple[list[Finding], int]:
    """Check what the settings name; returns the findings and the number of processes that models would have."""
    findings = list(ports.examine(settings.http, settings.grpc))
    try:
        scan = scan_repositories(settings.repositories, settings.model_directories)
    except ServerError as error:
        return [*findings, fail("repository", "cannot be served", str(error))], 0
    try:
        launcher = StubLauncher(stage_bundle())
    except PybackendError:  # the trial says so
        return findings, 0
    services = ModelServices()
    host = make_host(settings, launcher, services, InnerDoor(services))
    try:
        found, count = await models.examine(scan, host, all_must_load=settings.exit_on_error)
    finally:
        launcher.close()
        if host.sandbox is not None:
            host.sandbox.close()
    return [*findings, *found], count
