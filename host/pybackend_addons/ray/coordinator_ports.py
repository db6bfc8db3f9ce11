"""The ports of the coordinator: calls of clients that concern all replicas, which the entrances send here."""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import grpc
from aiohttp import web
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from ray.util import get_node_ip_address

from pybackend.modelconfig.protobuf.messages import message_class
from pybackend_addons.ray.changes import Answer, error_text
from pybackend_addons.ray.cluster import KEY_HEADER
from pybackend_addons.ray.coordinator import Coordinator
from pybackend_addons.ray.haproxy import NAMING, NO_NAME, NO_SHARED_MEMORY, SHARED_MEMORY, UNREACHED

_SERVICE = "inference.GRPCInferenceService"
_LARGEST_BYTES = 512 * 1024 * 1024
_ONE_PAGE = "/metrics/replicas/"
_INDEX = re.compile(r"/v2/repository/index/?")
_STATISTICS = re.compile(r"/v2/models(?:/.+)?/stats")
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class CoordinatorPorts:
    """Listens for HTTP and gRPC, and demands the key of the application."""

    def __init__(self, coordinator: Coordinator, key: str) -> None:
        self._coordinator = coordinator
        self._changes = coordinator.changes
        self._questions = coordinator.questions
        self._key = key.encode()
        self._methods: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "ServerReady": self._server_ready,
            "ModelStatistics": self._model_statistics,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "TraceSetting": self._trace_setting,
            "LogSettings": self._log_settings,
            "RepositoryIndex": self._index,
            **dict.fromkeys(SHARED_MEMORY, _refuse_shared_memory),
            **dict.fromkeys(NAMING, _refuse_unread),
        }

    async def open(self) -> tuple[str, int, int]:
        """Listen on free ports. Returns the address, and the ports for HTTP and gRPC."""
        host = get_node_ip_address()
        app = web.Application(client_max_size=_LARGEST_BYTES)
        app.router.add_route("*", "/{path:.*}", self._answer_http)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, host, 0)
        await site.start()
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", _LARGEST_BYTES)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, self._handlers()),))
        port = server.add_insecure_port(f"{host}:0")
        await server.start()
        self._server = server  # it stops when nothing refers to it
        return host, runner.addresses[0][1], port

    # HTTP

    async def _answer_http(self, request: web.Request) -> web.Response:
        if not hmac.compare_digest(request.headers.get(KEY_HEADER, "").encode(), self._key):
            return web.json_response({"error": "this port is for entrances of the same application"}, status=401)
        path = request.path
        if path == "/metrics":
            return web.Response(body=await self._questions.metrics(), content_type="text/plain")
        if path == "/metrics/targets":
            return web.json_response(self._questions.metrics_targets(request.host))
        if path.startswith(_ONE_PAGE):
            status, body = await self._questions.metrics_of(path.removeprefix(_ONE_PAGE))
            return web.Response(status=status, body=body, content_type="text/plain")
        if path == "/v2/health/ready":
            is_ready = self._coordinator.is_ready and UNREACHED not in request.headers
            return web.Response(status=200 if is_ready else 400)
        if _STATISTICS.fullmatch(path):
            status, body = await self._questions.statistics(request.raw_path)
        elif request.method == "GET":
            status, body = await self._ask_one(request.raw_path)
        else:
            try:
                document = json.loads(await request.read() or b"{}")
            except ValueError as error:
                return web.json_response({"error": f"failed to parse the request JSON: {error}"}, status=400)
            if not isinstance(document, dict):
                return web.json_response({"error": "the request must be a JSON object"}, status=400)
            is_index = _INDEX.fullmatch(path)
            status, body = await (
                self._questions.index(document) if is_index else self._changes.make(request.raw_path, document)
            )
        return web.Response(status=status, body=body, content_type="application/json")

    async def _ask_one(self, path: str) -> Answer:
        return await self._questions.ask_one(path, self._changes.pool_of(path))

    # gRPC

    def _handlers(self) -> dict[str, Any]:
        return {
            name: grpc.unary_unary_rpc_method_handler(
                self._handler(name, answer), response_serializer=lambda message: message.SerializeToString()
            )
            for name, answer in self._methods.items()
        }

    def _handler(self, name: str, answer: Callable[[Any], Awaitable[Any]]) -> Any:
        async def handle(message: bytes, context: Any) -> Any:
            metadata = dict(context.invocation_metadata())
            if not hmac.compare_digest(metadata.get(KEY_HEADER, "").encode(), self._key):
                await context.abort(
                    grpc.StatusCode.UNAUTHENTICATED, "this port is for entrances of the same application"
                )
            if name == "ServerReady" and UNREACHED in metadata:
                return message_class("inference.ServerReadyResponse")(ready=False)
            try:
                return await answer(message_class(f"inference.{name}Request").FromString(message))
            except DecodeError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be read: {error}")
            except _Refused as error:
                await context.abort(error.code, str(error))

        return handle

    async def _server_ready(self, _request: Any) -> Any:
        return message_class("inference.ServerReadyResponse")(ready=self._coordinator.is_ready)

    async def _model_statistics(self, request: Any) -> Any:
        document = _accepted(await self._questions.statistics(f"{_model_path(request.name, request.version)}/stats"))
        return json_format.ParseDict(
            document, message_class("inference.ModelStatisticsResponse")(), ignore_unknown_fields=True
        )

    async def _load(self, request: Any) -> Any:
        parameters = {
            name: base64.b64encode(value.bytes_param).decode()
            if value.WhichOneof("parameter_choice") == "bytes_param"
            else getattr(value, value.WhichOneof("parameter_choice") or "string_param")
            for name, value in request.parameters.items()
        }
        await self._change_model(request, "load", parameters)
        return message_class("inference.RepositoryModelLoadResponse")()

    async def _unload(self, request: Any) -> Any:
        parameters = {name: value.bool_param for name, value in request.parameters.items()}
        await self._change_model(request, "unload", parameters)
        return message_class("inference.RepositoryModelUnloadResponse")()

    async def _change_model(self, request: Any, action: str, parameters: Mapping[str, Any]) -> None:
        path = f"/v2/repository/models/{quote(request.model_name, safe='')}/{action}"
        _accepted(await self._changes.make(path, {"parameters": parameters}))

    async def _trace_setting(self, request: Any) -> Any:
        path = f"{_model_path(request.model_name) if request.model_name else '/v2'}/trace/setting"
        changes = {name: list(setting.value) or None for name, setting in request.settings.items()}
        changes = {name: found if name == "trace_level" or not found else found[0] for name, found in changes.items()}
        document = _accepted(await (self._changes.make(path, changes) if changes else self._ask_one(path)))
        response = message_class("inference.TraceSettingResponse")()
        for name, value in document.items():
            response.settings[name].value.extend(value if isinstance(value, list) else [value])
        return response

    async def _log_settings(self, request: Any) -> Any:
        changes = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
            for name, value in request.settings.items()
        }
        path = "/v2/logging"
        document = _accepted(await (self._changes.make(path, changes) if changes else self._ask_one(path)))
        response = message_class("inference.LogSettingsResponse")()
        for name, value in document.items():
            field = {bool: "bool_param", int: "uint32_param"}.get(type(value), "string_param")
            setattr(response.settings[name], field, value)
        return response

    async def _index(self, request: Any) -> Any:
        rows = _accepted(await self._questions.index({"ready": request.ready}))
        return json_format.ParseDict({"models": rows}, message_class("inference.RepositoryIndexResponse")())


class _Refused(Exception):
    """An answer that is no success."""

    def __init__(self, sentence: str, code: grpc.StatusCode) -> None:
        super().__init__(sentence)
        self.code = code


async def _refuse_shared_memory(_request: Any) -> Any:
    raise _Refused(NO_SHARED_MEMORY, grpc.StatusCode.FAILED_PRECONDITION)


async def _refuse_unread(_request: Any) -> Any:
    """Only requests in which the entrance cannot read what it must come here."""
    raise _Refused(NO_NAME, grpc.StatusCode.INVALID_ARGUMENT)


def _accepted(answer: Answer) -> Any:
    """The document of an answer. Raises _Refused if it is no success."""
    status, body = answer
    if status != 200:
        raise _Refused(error_text(body), _CODES.get(status, grpc.StatusCode.INTERNAL))
    return json.loads(body) if body else {}


def _model_path(name: str, version: str = "") -> str:
    path = f"/v2/models/{quote(name, safe='')}" if name else "/v2/models"
    return f"{path}/versions/{quote(version, safe='')}" if version else path
