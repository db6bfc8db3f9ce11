"""Checks the files that flags name, by reading them as the server does: certificates, API keys, the file of the log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pybackend.errors import ServerError
from pybackend.frontend.access.api_keys import ApiKeys
from pybackend.frontend.tls import PortCertificates
from pybackend.observability.log_collector import collected_warnings
from pybackend.settings import Settings
from pybackend.tools.doctor.finding import Finding, fail, ok, warn


def examine(settings: Settings) -> Iterator[Finding]:
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
