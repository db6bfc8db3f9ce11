"""The whole examination, layer by layer: ports are bound and files are read as the server does it."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from pybackend.environment.cache import default_cache_directory
from pybackend.errors import PybackendError, ServerError
from pybackend.frontend.access.api_keys import ApiKeys
from pybackend.frontend.listening import address_of, bind, release
from pybackend.frontend.tls import PortCertificates
from pybackend.observability.log_lines import one_line
from pybackend.observability.logging import collected_warnings
from pybackend.repository.layout import RepositoryScan, scan_repositories
from pybackend.repository.mirror.mirrors import Mirrors
from pybackend.repository.model_files import ModelFiles
from pybackend.repository.names import ModelNames
from pybackend.settings import LOCAL_ADDRESS, GrpcSettings, HttpSettings, Settings
from pybackend.tools.doctor import machine, models, trial
from pybackend.tools.doctor.check import model_host
from pybackend.tools.doctor.finding import Finding, Status, fail, ok, warn


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
    findings = [*_ports(settings.http, settings.grpc), *_files(settings)]
    cloud = settings.cloud_repositories
    try:
        mirrors = Mirrors(cloud.urls, cloud.cache_directory)
        await mirrors.open()
        settings = settings.with_local(mirrors.directories)
        scan = scan_repositories(
            settings.repositories, settings.model_directories, mirrors.listings, namespacing=settings.model_namespacing
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


def _files(settings: Settings) -> Iterator[Finding]:
    """Check the files of a server's settings; a row for each kind that they name."""
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
    """Check each port that the server would open."""
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
