"""Read-only routes about the server itself: the last lines of its log, its settings, processes and traces, and the files of models.

They answer programs on this machine, unless the operator has given their group a header, which then decides.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from fastapi import FastAPI, Request, Response

from pybackend.author_files.apart import apart
from pybackend.engine.answers import RefusalReason
from pybackend.environment.environment import installed_packages
from pybackend.errors import InferenceError, ModelLoadError
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.routes import add_route, client_address
from pybackend.observability.logging import LOG
from pybackend.observability.machine import processes_below
from pybackend.protocol.documents.metadata import encode_error

DIAGNOSTICS = "/v2/diagnostics"

_JSON = "application/json"
_PROXIES = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})
_ELSEWHERE = (
    "This route answers programs on the server's own machine. --http-restricted-api=diagnostics:HEADER=VALUE opens it to "
    "callers with that header"
)


def add(app: FastAPI, frontend: InferFrontend, in_force: Sequence[tuple[str, str, str]]) -> None:
    """Add the routes. ``in_force``: name, value and source of each flag."""

    async def log_lines(request: Request) -> Response:
        after = request.query_params.get("after", "")
        number = int(after) if after.isdecimal() and len(after) < 19 else 0
        return _json({"lines": LOG.recent.since(number, request.query_params.get("model", ""))})

    async def settings(_request: Request) -> Response:
        return _json(
            {"settings": [{"name": name, "value": value, "source": source} for name, value, source in in_force]}
        )

    async def processes(_request: Request) -> Response:
        return _json({"processes": await asyncio.to_thread(processes_below, os.getpid())})

    async def traces(_request: Request) -> Response:
        return _json({"traces": frontend.engine.tracer.recent()})

    async def configuration(request: Request) -> Response:
        path, text = await frontend.engine.control.configuration_file(request.query_params.get("model", ""))
        return _json({"path": str(path), "text": text})

    async def environment(request: Request) -> Response:
        asked = request.query_params
        model = frontend.engine.describe(asked.get("model", ""), asked.get("version", ""))
        try:
            return _json(await apart("the packages of the environment", _environment, model.environment))
        except ModelLoadError as error:
            raise InferenceError(error.message, error.code) from error

    def guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            opened = frontend.guard is not None and frontend.guard.guard.needs(request.scope["path"])[1]
            if opened or _is_from_here(request):
                return await answer(request)
            frontend.engine.refusals.add(
                HTTP_CLIENT.protocol, RefusalReason.DENIED, _ELSEWHERE, sender=client_address(request)
            )
            return Response(encode_error(_ELSEWHERE), 403, media_type=_JSON)

        return answered

    for name, summary, answer in (
        ("log", "The last lines of the log; `after` and `model` choose among them", log_lines),
        ("settings", "The flags in force, without secrets", settings),
        ("processes", "The server's processes, with their memory", processes),
        ("traces", "The last requests that were traced, without tensors", traces),
        ("configuration", "The configuration file of the `model`, as it lies in its repository", configuration),
        ("environment", "Interpreter, packages and archive of the environment of the `model`", environment),
    ):
        add_route(app, "GET", f"{DIAGNOSTICS}/{name}", "pybackend", summary, guarded(answer))


def _environment(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """The environment of a model, the server's own for None."""
    if facts is None:
        packages = installed_packages(map(Path, sys.path))
        return {"interpreter": sys.executable, "archive": None, "archive_bytes": None, "packages": packages}
    archive, size = Path(facts["path"]), None
    with suppress(OSError):
        size = archive.stat().st_size if archive.is_file() else None
    packages = installed_packages(Path(facts["prefix"]).glob("lib/python3*/site-packages"))
    return {"interpreter": facts["interpreter"], "archive": str(archive), "archive_bytes": size, "packages": packages}


def _is_from_here(request: Request) -> bool:
    """True for a call from this machine to an address of this machine, of no web page, and not known to come through a proxy.

    Otherwise a web page could give its own name the address of this machine.
    """
    if request.client is None or any(name in request.headers for name in (*_PROXIES, "origin")):
        return False
    with suppress(ValueError):
        name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        return _is_loopback(request.client.host) and (name == "localhost" or _is_loopback(name))
    return False


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        found = ip_address(address)
        mapped = getattr(found, "ipv4_mapped", None)
        return (mapped or found).is_loopback
    return False


def _json(document: object) -> Response:
    return Response(msgspec.json.encode(document), media_type=_JSON)
