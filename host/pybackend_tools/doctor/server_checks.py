"""The whole examination, layer by layer: ports are bound and files are read as the server does it."""

import asyncio
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from pybackend.environment.cache import default_cache_directory
from pybackend.errors import ModelLoadError, PybackendError, ServerError
from pybackend.frontend.access.api_keys import ApiKeys
from pybackend.frontend.listening import address_of, bind, release
from pybackend.frontend.tls import PortCertificates
from pybackend.gpus import find_gpus
from pybackend.model.host import ModelHost
from pybackend.model.processes import ModelProcesses, gpu_accesses
from pybackend.model.source import ModelSource
from pybackend.model.version_loader import VersionLoader
from pybackend.modelconfig.ensemble import part_names
from pybackend.observability.log_lines import one_line
from pybackend.observability.logging import collected_warnings
from pybackend.repository.layout import RepositoryScan, model_directory, scan_repositories
from pybackend.repository.model_files import RepositoryFiles
from pybackend.repository.names import ModelNames, only
from pybackend.repository.reading import read_model, served_versions
from pybackend.repository.remote import RemoteRepositories
from pybackend.settings import LOCAL_ADDRESS, GrpcSettings, HttpSettings, Settings
from pybackend.startup import remote_repositories
from pybackend_tools.doctor import machine, trial
from pybackend_tools.doctor.finding import Finding, Status, fail, not_in_force, ok, warn
from pybackend_tools.doctor.model_checks import model_host


async def examine(settings: Settings) -> list[Finding]:
    """Check every layer; checks that need a process are skipped where none can run.

    ``settings``: of the server that is to run. Without repositories only the machine is examined.
    """
    findings: list[Finding] = []
    process_count = 0
    if settings.place_names:
        findings, process_count = await _examine_server(settings)
    machines = [machine.python(), machine.kernel(), machine.descriptors(process_count), machine.processes()]
    machines += [machine.shared_memory(), machine.front_ends(settings.front_ends)]
    gpus = await asyncio.to_thread(find_gpus)
    of_gpus = [machine.gpus(gpus)]
    if all(finding.status is not Status.FAIL for finding in machines):
        machines += await trial.examine()
        if gpus.found:
            of_gpus.append(await asyncio.to_thread(trial.on_gpu, gpus))
    cache = (settings.environments.cache_directory or default_cache_directory()).absolute()
    return [*machines, machine.environment_cache(cache), machine.packing(), *of_gpus, *findings]


async def _examine_server(settings: Settings) -> tuple[list[Finding], int]:
    """Check what the settings name; returns the findings and the number of processes that models would have."""
    findings = [*_ports(settings.http, settings.grpc), *_files(settings)]
    try:
        remote = remote_repositories(settings.cloud_repositories)
        await remote.open()
        settings = settings.with_local(remote.directories)
        scan = scan_repositories(
            settings.repositories, settings.model_directories, remote.listings, namespacing=settings.model_namespacing
        )
    except ServerError as error:
        return [*findings, fail("repository", "cannot be served", str(error))], 0
    try:
        return await _examine_models(settings, scan, remote, findings)
    finally:
        await asyncio.to_thread(remote.close)


async def _examine_models(
    settings: Settings, scan: RepositoryScan, remote: RemoteRepositories, findings: list[Finding]
) -> tuple[list[Finding], int]:
    """Add the findings about models. Those in cloud storage are downloaded, and stay in the cache for the server."""
    with ExitStack() as stack:
        try:
            host = stack.enter_context(model_host(settings))
        except PybackendError:  # the trial says so
            return findings, 0
        files = RepositoryFiles(scan, remote, settings.models.config_name, ModelNames({}, scan.namespaces))
        found, count = await _models(scan, host, files, all_must_load=settings.exit_on_error)
    return [*findings, *found], count


def _files(settings: Settings) -> Iterator[Finding]:
    for port, service in ((settings.http, "http"), (settings.grpc, "grpc")):
        tls = port.tls if port.enabled else None
        if tls is not None:
            found = f"{tls.certificate} and {tls.key} belong to each other"
            read = partial(PortCertificates, tls, service, "h2")
            yield _examined(f"{service.upper()} certificates", found, read)
    keys = settings.api_keys
    if keys is not None:
        yield _examined("API keys", f"{keys.file} can be used", partial(ApiKeys, keys.file))
    if settings.log.file is not None:
        yield _log_file(settings.log.file)


def _examined(layer: str, found: str, read: Callable[[], object]) -> Finding:
    with collected_warnings() as warnings:
        try:
            read()
        except ServerError as error:
            return fail(layer, "cannot be used", str(error))
    return warn(layer, found, " ".join(warnings)) if warnings else ok(layer, found)


def _log_file(path: Path) -> Finding:
    """The file is not made, because the server's user may be another one."""
    if os.access(path if path.exists() else path.absolute().parent, os.W_OK) and not path.is_dir():
        return ok("log file", f"{path} can be written")
    return fail("log file", f"{path} cannot be written", "Give a file in a directory that the server's user may write")


def _ports(http: HttpSettings, grpc: GrpcSettings) -> Iterator[Finding]:
    if http.enabled:
        yield _port(http.address, http.port, "HTTP", reuse_port=http.reuse_port)
    if grpc.enabled:
        yield _port(grpc.address, grpc.port, "GRPC", reuse_port=grpc.reuse_port)
    if http.metrics_enabled:
        yield _port(http.metrics_address, http.metrics_port, "Metrics")


def _port(address: str, port: int, service: str, *, reuse_port: bool = False) -> Finding:
    layer = f"{service} port"
    place = address if address.startswith(LOCAL_ADDRESS) else f"{address}:{port}"
    try:
        sock = bind(address, port, service, reuse_port=reuse_port)
    except ServerError as error:
        server = "" if place == address else running_server(port)
        if server:
            advice = f"Stop that server, or choose another port with --{service.lower()}-port; `pybackend status` asks that one"
            return fail(layer, f"{place} belongs to a running pybackend, {server}", advice)
        return fail(layer, f"{place} cannot be opened", str(error))
    try:
        return ok(layer, f"{place} is free" if port else f"any free one, such as {address_of(sock)}")
    finally:
        release(sock)


_LISTENS = "0A"
"""A state of sockets in /proc/net/tcp."""

_COMMANDS = frozenset({"serve", "dev"})
_LONGEST_COMMAND = 100


def running_server(port: int) -> str:
    """The server of ours that listens on a port of this machine, as a phrase; ``""`` if none does that this user may see."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").iterdir():
        if not sockets or not process.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            command = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
            names = [Path(word).name for word in command]
            if "pybackend" not in names or not _COMMANDS & set(names[names.index("pybackend") :]):
                continue
            if any(str(each.readlink()) in sockets for each in (process / "fd").iterdir()):
                text = one_line(shlex.join(["pybackend", *command[names.index("pybackend") + 1 :]]))
                return f"process {process.name}, `{text[:_LONGEST_COMMAND]}`"
    return ""


def _listening(port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):  # no such protocol here
            for line in Path(table).read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENS and cells[1].endswith(f":{port:04X}"):
                    yield cells[9]


NOT_LOADED = "cannot be loaded"
"""The facts about a model that the server would not serve."""


async def _models(
    scan: RepositoryScan, host: ModelHost, files: RepositoryFiles, *, all_must_load: bool
) -> tuple[list[Finding], int]:
    """Check the layout of repositories and every model in them.

    ``all_must_load``: whether a model that cannot be loaded would end the server.

    Returns:
        The findings, and the number of processes that the models would have.
    """
    findings = [warn("repository", warning, "the server ignores it, or does not start") for warning in scan.warnings]
    if not scan.models and not scan.duplicates:
        places = ", ".join(scan.place_names)
        findings.append(
            warn("repository", f"no model in {places}", "a model is a directory <model>/<version>/model.py there")
        )
    names, stored = ModelNames({}, scan.namespaces), {*scan.models, *scan.duplicates}
    at_start = stored if host.settings.startup_models is None else names.at_start(host.settings.startup_models, stored)
    readings: dict[str, ModelSource | Finding] = {}
    for name in sorted({*scan.models, *at_start}):
        try:
            await files.fetch(name)
            reading = await read_model(model_directory(scan, name), host, namespace=names.split(name)[0])
        except PybackendError as error:
            readings[name] = _unloadable(name, error, is_fatal=all_must_load and name in at_start)
        else:
            # models that share an environment must be known before the first is prepared
            host.environments.uses.note(reading.directory, reading.environment_path)
            readings[name] = reading
    process_count = 0
    for name, read in readings.items():
        if isinstance(read, Finding):
            findings.append(read)
            continue
        try:
            finding, count = await _prepared(read, host, names, scan.models)
        except PybackendError as error:
            finding, count = _unloadable(name, error, is_fatal=all_must_load and name in at_start), 0
        findings.append(finding)
        process_count += count
    return findings, process_count


async def _prepared(
    reading: ModelSource, host: ModelHost, names: ModelNames, models: Mapping[str, Path]
) -> tuple[Finding, int]:
    name, count, told = reading.full_name, 0, []
    with collected_warnings() as warnings:
        for version, source in (await served_versions(reading, host)).items():
            if reading.config.is_ensemble:
                named = part_names(reading.config)
                parts = [only(each, names.to_load(each, reading.namespace, models)) for each in named]
                missing = sorted({*parts} - {*models})
                if missing:
                    raise ModelLoadError(f"the ensemble needs model '{missing[0]}', which is in no repository")
                told.append(f"version {version}: ensemble of {', '.join(dict.fromkeys(parts))}")
                continue
            fact, processes, lacking = await _rehearsed(source, host)
            count += processes
            told.append(f"version {version}: {fact}")
            warnings += not_in_force(lacking)
    found = "; ".join(told)
    return warn(_row(name), found, " ".join(dict.fromkeys(warnings))) if warnings else ok(_row(name), found), count


async def _rehearsed(source: ModelSource, host: ModelHost) -> tuple[str, int, Mapping[str, str]]:
    """Do what loading a version does before any of its code runs, and release everything again.

    Returns what it would run on, the number of its processes, and the layers of its sandbox that are known not to
    apply, with reasons.
    """
    processes = ModelProcesses(source, host, None)
    try:
        planned = await VersionLoader(source, host, processes).open()
        count, environment, sandbox = max(1, len(planned)), processes.environment, processes.sandbox
        python = (
            "the server's Python" if environment is None else f"Python {environment['python']}, {environment['path']}"
        )
        numbers = sorted({spec.device_id for spec in planned if spec.kind == "GPU"})
        gpus = f", GPU {', '.join(map(str, numbers))}" if numbers else ""
        level = "off" if sandbox is None else sandbox.level
        fact = f"{count} {'process' if count == 1 else 'processes'} on {python}{gpus}; sandbox {level}"
        if sandbox is None:
            return fact, count, {}
        return fact, count, sandbox.of_instance(0, gpu_accesses(host, planned)[0]).confinement.missing
    finally:
        await processes.close()


def _unloadable(name: str, error: PybackendError, *, is_fatal: bool) -> Finding:
    make = fail if is_fatal else warn
    return make(_row(name), NOT_LOADED, str(error).strip())


def _row(name: str) -> str:
    return f"model '{name}'"
