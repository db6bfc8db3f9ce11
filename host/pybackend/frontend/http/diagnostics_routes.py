"""Read-only routes about the server itself: the last lines of its log, its settings, processes and traces, and the files of models.

They answer callers with the server's own key, unless the operator has given their group a header, which then decides.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from pybackend.apart import apart
from pybackend.engine.answers import RefusalReason
from pybackend.environment.environment import installed_packages
from pybackend.errors import InferenceError, ModelLoadError
from pybackend.frontend.access.restrictions import Restrictions
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_frontend import RouteFrontend
from pybackend.frontend.http.routes import add_route, client_address
from pybackend.observability.logging import LOG
from pybackend.observability.machine import processes_below
from pybackend.protocol.documents.metadata import encode_error
from pybackend.settings import ApiGroup, Restriction

DIAGNOSTICS = "/v2/diagnostics"

_JSON = "application/json"


def add(
    app: FastAPI,
    frontend: RouteFrontend,
    in_force: Sequence[tuple[str, str, str]],
    addresses: Callable[[], Mapping[str, str]],
    header: str,
    key: str,
) -> None:
    """Add the routes.

    ``in_force``: name, value and source of each flag. ``addresses``: where the server listens, by service. ``header``
    and ``key``: what callers need if the operator has chosen nothing else.
    """
    own_key = Restrictions(
        [Restriction(frozenset({ApiGroup.DIAGNOSTICS}), header, key)],
        text="The diagnostics are for the console of the server's own user, which has the server's key. "
        "--http-restricted-api=diagnostics:HEADER=VALUE opens them to others. This API is restricted, expecting header",
    )

    async def log_lines(request: Request) -> Response:
        after = request.query_params.get("after", "")
        number = int(after) if after.isdecimal() and len(after) < 19 else 0
        return _json({"lines": LOG.recent.since(number, request.query_params.get("model", ""))})

    async def settings(_request: Request) -> Response:
        flags = [{"name": name, "value": value, "source": source} for name, value, source in in_force]
        return _json({"settings": flags, "addresses": addresses()})

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
            refusal = None if opened else own_key.refusal(ApiGroup.DIAGNOSTICS, request.headers.raw)
            if refusal is None:
                return await answer(request)
            frontend.engine.refusals.add(
                HTTP_CLIENT.protocol, RefusalReason.DENIED, refusal, sender=client_address(request)
            )
            return Response(encode_error(refusal), 403, media_type=_JSON)

        return answered

    for name, summary, answer in (
        ("log", "The last lines of the log; `after` and `model` choose among them", log_lines),
        ("settings", "The flags in force, without secrets, and the addresses of the ports", settings),
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


def _json(document: object) -> Response:
    return Response(msgspec.json.encode(document), media_type=_JSON)
