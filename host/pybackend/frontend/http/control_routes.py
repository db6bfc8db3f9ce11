"""The routes that read and change what the server does: its models, settings, traces, and regions of shared memory."""

import asyncio
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from pybackend.errors import InferenceError
from pybackend.frontend.http.arrival import Arrival, small_body
from pybackend.frontend.http.body import RouteLimit
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_frontend import RouteFrontend
from pybackend.frontend.http.routes import add_route, client_address, model_name, name_in_path, object_schema
from pybackend.modelconfig.traffic import TrafficChange, TrafficReport
from pybackend.observability.logging import LOG
from pybackend.protocol.documents.region import parse_registration
from pybackend.protocol.documents.repository import (
    index_document,
    parse_index_request,
    parse_load_request,
    parse_unload_request,
    traffic_change_in,
    traffic_document,
)
from pybackend.protocol.documents.settings import log_changes_in, log_document, trace_changes_in, trace_document

_JSON = "application/json"

_ON_LOOP_BYTES = 64 * 1024
"""A longer body is parsed on a thread: 64 MiB of base64 take a quarter of a second."""

_INDEX = object_schema(ready={"type": "boolean", "description": "true for ready versions only", "example": True})
_LOAD = object_schema(
    parameters=object_schema(
        config={"type": "string", "description": "JSON of the configuration to use instead of config.pbtxt"},
    )
    | {"additionalProperties": {"type": "string", "description": "`file:<path>`: base64 of a file of the model"}}
) | {"example": {}}
_UNLOAD = object_schema(
    parameters=object_schema(
        unload_dependents={"type": "boolean", "description": "true for the parts of an ensemble too"}
    )
) | {"example": {}}
_TRAFFIC = object_schema(
    weights={"type": "object", "additionalProperties": {"type": "integer"}, "description": "weight of each version"},
    shadow=object_schema(version={"type": "integer"}, percent={"type": "number"}),
    reset={"type": "boolean", "description": "true for the rules of the model's configuration"},
) | {"example": {"weights": {"1": 1}}}
_REGISTRATION = object_schema(
    "key",
    "byte_size",
    key={"type": "string", "examples": ["/input"], "description": "the name of the shared memory object"},
    offset={"type": "integer", "minimum": 0, "default": 0},
    byte_size={"type": "integer", "minimum": 1},
) | {"example": {"key": "/input", "offset": 0, "byte_size": 64}}
_REGIONS = {
    "type": "array",
    "items": object_schema(
        name={"type": "string"}, key={"type": "string"}, offset={"type": "integer"}, byte_size={"type": "integer"}
    ),
}


def add_repository(app: FastAPI, frontend: RouteFrontend) -> None:
    """Add the routes of the model repository extension: the index, and loading and unloading models."""
    control = frontend.engine.control
    limit = RouteLimit(frontend.limits.max_input_size_bytes, "use --http-max-input-size to increase it")

    async def index(request: Request) -> Response:
        only_ready = parse_index_request(await small_body(frontend, request))
        return Response(index_document(await control.read_index(only_ready=only_ready)), media_type=_JSON)

    async def load(request: Request) -> Response:
        control.check(model_name(request))
        with closing(Arrival(frontend, request)) as arrival:
            body = await arrival.whole(limit)
            if len(body) <= _ON_LOOP_BYTES:
                config_json, files = parse_load_request(body)
            else:
                config_json, files = await asyncio.to_thread(parse_load_request, body)
            await control.load(model_name(request), config_json, files, of_client=True)
        return Response()

    async def unload(request: Request) -> Response:
        control.check()
        unload_dependents = parse_unload_request(await small_body(frontend, request))
        await control.unload(model_name(request), unload_dependents=unload_dependents)
        return Response()

    async def traffic(request: Request) -> Response:
        return _traffic_answer(control.traffic(model_name(request)))

    async def change_traffic(request: Request) -> Response:
        control.check()
        change = TrafficChange(**traffic_change_in(await small_body(frontend, request)))
        return _traffic_answer(await control.change_traffic(model_name(request), change))

    path, tag = "/v2/repository/models/{model_name}", "repository"
    summary = "The versions that answer requests without a version, and the shadow"
    add_route(app, "GET", f"{path}/traffic", tag, summary, traffic)
    for route, summary, answer, schema in (
        (f"{path}/traffic", "Change the weights of versions, or the shadow", change_traffic, _TRAFFIC),
        ("/v2/repository/index", "The models of the repositories, with their states", index, _INDEX),
        (f"{path}/load", "Load the model, or bring it up to date, and wait until it is ready", load, _LOAD),
        (f"{path}/unload", "Begin to unload the model", unload, _UNLOAD),
    ):
        body, answers = {_JSON: {"schema": schema}}, {"description": "done"}
        add_route(app, "POST", route, tag, summary, answer, body=body, body_required=False, answers=answers)


def _traffic_answer(report: TrafficReport) -> Response:
    document = traffic_document(report.name, report.rules, report.source, report.shares)
    return Response(document, media_type=_JSON)


def add_settings(app: FastAPI, frontend: RouteFrontend) -> None:
    """Add the routes of the settings of the log and of traces."""
    engine = frontend.engine

    async def log_settings(_request: Request) -> Response:
        return Response(log_document(LOG.settings), media_type=_JSON)

    async def change_log_settings(request: Request) -> Response:
        LOG.change(**log_changes_in(await small_body(frontend, request)))
        await engine.spread_settings()
        return await log_settings(request)

    def traced(request: Request) -> str:
        """The full name of the model in the path, empty for the whole server."""
        name = model_name(request)
        return engine.serving(name) if name else ""

    async def trace_settings(request: Request) -> Response:
        return Response(trace_document(engine.tracer.settings_of(traced(request))), media_type=_JSON)

    async def change_trace_settings(request: Request) -> Response:
        name = traced(request)
        engine.tracer.change(name, trace_changes_in(await small_body(frontend, request)))
        await engine.spread_settings()
        return Response(trace_document(engine.tracer.settings_of(name)), media_type=_JSON)

    add_route(app, "GET", "/v2/logging", "logging", "The settings of the log", log_settings)
    add_route(app, "POST", "/v2/logging", "logging", "Change settings of the log", change_log_settings)
    for path in ("/v2/trace/setting", "/v2/models/{model_name}/trace/setting"):
        add_route(app, "GET", path, "trace", "The settings of traces", trace_settings)
        add_route(app, "POST", path, "trace", "Change settings of traces", change_trace_settings)


def add_shared_memory(app: FastAPI, frontend: RouteFrontend) -> None:
    """Add the routes of the shared memory extension: clients register regions, and ask for and unregister them.

    Requests then name a region in the parameters of a tensor; see :mod:`pybackend.frontend.http.infer_route`.
    """
    regions = frontend.engine.regions
    name = partial(name_in_path, parameter="region")

    async def status(request: Request) -> Response:
        return _json(
            {"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.nbytes}
            for each in regions.status(name(request))
        )

    async def register(request: Request) -> Response:
        regions.check_enabled()
        wanted = parse_registration(await small_body(frontend, request))
        regions.register(name(request), wanted.key, wanted.offset, wanted.byte_size)
        return Response()

    async def unregister(request: Request) -> Response:
        regions.unregister(name(request))
        return Response()

    async def cuda_status(request: Request) -> Response:
        regions.check_cuda_status(name(request))
        return _json(())

    async def cuda_register(request: Request) -> Response:
        regions.refuse_cuda(name(request))
        return Response()

    async def cuda_unregister(_request: Request) -> Response:
        regions.check_enabled()
        return Response()

    def add(method: str, path: str, summary: str, answer: Any, **openapi: Any) -> None:
        async def counted(request: Request) -> Response:
            try:
                return await answer(request)  # type: ignore[no-any-return]
            except InferenceError as error:
                frontend.engine.refusals.add_error(HTTP_CLIENT.protocol, "", error, client_address(request))
                raise

        add_route(app, method, path, "shared memory", summary, counted, **openapi)

    listed = {"description": "the regions", "content": {_JSON: {"schema": _REGIONS}}}
    registration, done, gone = (
        {_JSON: {"schema": _REGISTRATION}},
        {"description": "registered"},
        {"description": "unregistered"},
    )
    for kind, read, make, remove, body in (
        ("system", status, register, unregister, registration),
        ("cuda", cuda_status, cuda_register, cuda_unregister, None),
    ):
        base = f"/v2/{kind}sharedmemory"
        add("GET", f"{base}/status", f"All regions of {kind} shared memory", read, answers=listed)
        add("GET", f"{base}/region/{{region}}/status", "One region", read, answers=listed)
        add("POST", f"{base}/region/{{region}}/register", "Register a region", make, body=body, answers=done)
        add("POST", f"{base}/region/{{region}}/unregister", "Unregister a region", remove, answers=gone)
        add("POST", f"{base}/unregister", f"Unregister all regions of {kind} shared memory", remove, answers=gone)


def _json(documents: Any) -> Response:
    return Response(msgspec.json.encode(list(documents)), media_type=_JSON)
