"""The methods of ``inference.GRPCInferenceService`` beside inference, and of ``grpc.health.v1.Health``, answered from an engine."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pybackend import __version__
from pybackend.engine.answers import RefusalReason
from pybackend.engine.description import NAMESPACE
from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.grpc import reflection
from pybackend.frontend.grpc.call import GrpcCall
from pybackend.frontend.grpc.call_factory import CallFactory, begin_call
from pybackend.frontend.grpc.frontend import PROTOCOL, GrpcFrontend
from pybackend.frontend.grpc.head import CallHead, CallRefusal
from pybackend.frontend.grpc.length_prefixed import LARGEST_MESSAGE_BYTES
from pybackend.frontend.grpc.method_handler import MethodHandler, UnaryMethod
from pybackend.frontend.grpc.peer import Peer
from pybackend.modelconfig.parser import serialize_config
from pybackend.modelconfig.protobuf.messages import message_class
from pybackend.observability.logging import LOG
from pybackend.protocol.documents.metadata import tensor_documents
from pybackend.protocol.documents.repository import (
    CONFIG,
    FILE_PREFIX,
    REPOSITORY_NAMED,
    UNLOAD_DEPENDENTS,
    unknown_parameter,
)
from pybackend.protocol.documents.settings import log_changes, log_values, trace_changes, trace_values
from pybackend.protocol.grpc.message import check_load_fields
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend_http2 import RequestHead, Stream

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Those of the protocol's extensions that this front end has, in the protocol's order."""


_SETTING_FIELDS = {bool: "bool_param", int: "uint32_param", str: "string_param"}
_LOG_SETTINGS = {
    "log_file": str,
    "log_info": bool,
    "log_warning": bool,
    "log_error": bool,
    "log_verbose_level": int,
    "log_format": str,
}


def _methods_by_path(engine: InferenceEngine) -> dict[str, UnaryMethod]:
    """The methods by path, ``/package.Service/UnaryMethod``."""
    served = _Answers(engine)
    found = {
        f"/{INFERENCE}/{name}": UnaryMethod(f"inference.{name}Request", answer)
        for name, answer in {
            "ServerLive": served.server_live,
            "ServerReady": served.server_ready,
            "ModelReady": served.model_ready,
            "ServerMetadata": served.server_metadata,
            "ModelMetadata": served.model_metadata,
            "ModelConfig": served.model_config,
            "ModelStatistics": served.model_statistics,
            "RepositoryIndex": served.repository_index,
            "LogSettings": served.log_settings,
            "TraceSetting": served.trace_setting,
            **_shared_memory_answers(engine),
        }.items()
    }
    control = engine.control.check
    found |= {
        f"/{INFERENCE}/RepositoryModelLoad": UnaryMethod(
            "inference.RepositoryModelLoadRequest",
            served.load_model,
            most_bytes=LARGEST_MESSAGE_BYTES,
            check=control,
            check_fields=check_load_fields,
        ),
        f"/{INFERENCE}/RepositoryModelUnload": UnaryMethod(
            "inference.RepositoryModelUnloadRequest", served.unload_model, check=control
        ),
    }
    found[f"/{HEALTH}/Check"] = UnaryMethod("grpc.health.v1.HealthCheckRequest", served.health)
    found[f"/{HEALTH}/List"] = UnaryMethod("grpc.health.v1.HealthListRequest", served.health_list)
    for package in reflection.PACKAGES:
        path = f"/{package}.ServerReflection/ServerReflectionInfo"
        reflector = reflection.Reflection(package, (INFERENCE, HEALTH))
        found[path] = UnaryMethod(f"{package}.ServerReflectionRequest", reflector.answer, streams=True)
    return found


def _message(message_name: str, /, **fields: Any) -> Any:
    return message_class(f"inference.{message_name}")(**fields)


def _refuse_repository(request: Any) -> None:
    if request.repository_name:
        raise REPOSITORY_NAMED.again()


def _parameter(name: str, value: Any, kind: str) -> Any:
    """The value of a parameter; an InferenceError if it is of another kind."""
    if value.WhichOneof("parameter_choice") != kind:
        raise InferenceError(f"invalid value type for '{name}', expected {kind}", ErrorCode.INVALID_ARG)
    return getattr(value, kind)


class _Answers:
    """An engine's answers to the messages of requests."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine

    def _refuse_while_exiting(self) -> None:
        if self._engine.is_exiting:
            raise InferenceError("Server exiting", ErrorCode.UNAVAILABLE)

    async def server_live(self, _request: Any) -> Any:
        self._refuse_while_exiting()
        return _message("ServerLiveResponse", live=True)

    async def server_ready(self, _request: Any) -> Any:
        self._refuse_while_exiting()
        return _message("ServerReadyResponse", ready=await self._engine.is_ready())

    async def model_ready(self, request: Any) -> Any:
        self._refuse_while_exiting()
        try:
            ready = await self._engine.would_answer(request.name, request.version)
        except InferenceError:
            ready = False  # an unknown model is not ready; the reason does not matter
        return _message("ModelReadyResponse", ready=ready)

    async def server_metadata(self, _request: Any) -> Any:
        return _message(
            "ServerMetadataResponse", name=self._engine.server_id, version=__version__, extensions=EXTENSIONS
        )

    async def model_metadata(self, request: Any) -> Any:
        model = self._engine.describe(request.name, request.version)
        signature = model.signature
        batching = signature.max_batch_size > 0
        return _message(
            "ModelMetadataResponse",
            name=signature.model_name,
            versions=model.versions,
            platform=model.platform,
            inputs=tensor_documents(signature.inputs.values(), batching),
            outputs=tensor_documents(signature.outputs.values(), batching),
        )

    async def model_config(self, request: Any) -> Any:
        answer = _message("ModelConfigResponse")
        answer.config.MergeFromString(serialize_config(self._engine.describe(request.name, request.version).document))
        return answer

    async def model_statistics(self, request: Any) -> Any:
        answer = _message("ModelStatisticsResponse")
        async for part in self._engine.statistics(request.name, request.version):
            for row in part:
                row.pop(NAMESPACE, None)  # the schema has no such field
            answer.MergeFrom(_message("ModelStatisticsResponse", model_stats=part))
        return answer

    async def repository_index(self, request: Any) -> Any:
        _refuse_repository(request)
        answer = _message("RepositoryIndexResponse")
        for row in await self._engine.control.read_index(only_ready=request.ready):
            answer.models.add(name=row.name, version=row.version, state=row.state, reason=row.reason)
        return answer

    async def load_model(self, request: Any) -> Any:
        _refuse_repository(request)
        self._engine.control.check(request.model_name)
        config_json: str | None = None
        files: dict[str, bytes] = {}
        for name, value in request.parameters.items():
            if name == CONFIG:
                config_json = _parameter(name, value, "string_param")
            elif name.startswith(FILE_PREFIX):
                files[name] = _parameter(name, value, "bytes_param")
            else:
                raise InferenceError(unknown_parameter(name), ErrorCode.INVALID_ARG)
        await self._engine.control.load(request.model_name, config_json, files, of_client=True)
        return _message("RepositoryModelLoadResponse")

    async def unload_model(self, request: Any) -> Any:
        _refuse_repository(request)
        parameters = request.parameters
        dependents = UNLOAD_DEPENDENTS in parameters and _parameter(
            UNLOAD_DEPENDENTS, parameters[UNLOAD_DEPENDENTS], "bool_param"
        )
        await self._engine.control.unload(request.model_name, unload_dependents=dependents)
        return _message("RepositoryModelUnloadResponse")

    async def trace_setting(self, request: Any) -> Any:
        name, tracer = request.model_name, self._engine.tracer
        if name:
            name = self._engine.serving(name)
        given = {key: list(setting.value) or None for key, setting in request.settings.items()}
        if given:
            tracer.change(name, trace_changes(given))
            await self._engine.spread_settings()
        answer = _message("TraceSettingResponse")
        for key, value in trace_values(tracer.settings_of(name)).items():
            answer.settings[key].value.extend([value] if isinstance(value, str) else value)
        return answer

    async def log_settings(self, request: Any) -> Any:
        """Change the settings that the request has, and answer with all of them."""
        if request.settings:
            _change_log(request)
            await self._engine.spread_settings()
        answer = _message("LogSettingsResponse")
        for name, value in log_values(LOG.settings).items():
            setattr(answer.settings[name], _SETTING_FIELDS[type(value)], value)
        return answer

    async def health(self, _request: Any) -> Any:
        return message_class("grpc.health.v1.HealthCheckResponse")(status=await self._status())

    async def health_list(self, _request: Any) -> Any:
        answer = message_class("grpc.health.v1.HealthListResponse")()
        for service in ("", INFERENCE):
            answer.statuses[service].status = await self._status()
        return answer

    async def _status(self) -> str:
        self._refuse_while_exiting()
        return "SERVING" if await self._engine.is_ready() else "NOT_SERVING"


def _change_log(request: Any) -> None:
    given = {}
    for name, setting in request.settings.items():
        field = setting.WhichOneof("parameter_choice")
        if field is None:
            continue  # as null over HTTP
        wanted = _LOG_SETTINGS.get(name)
        if wanted is not None and field != _SETTING_FIELDS[wanted]:
            raise InferenceError(f"expect {_SETTING_FIELDS[wanted]} for '{name}', got {field}", ErrorCode.INVALID_ARG)
        given[name] = getattr(setting, field)
    LOG.change(**log_changes(given))


def _shared_memory_answers(engine: InferenceEngine) -> Mapping[str, Callable[[Any], Awaitable[Any]]]:
    regions = engine.regions

    def add_status(request: Any, answer: Any) -> None:
        for region in regions.status(request.name):
            status = answer.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.nbytes

    def answering(name: str, act: Callable[[Any, Any], None]) -> Callable[[Any], Awaitable[Any]]:
        async def answer(request: Any) -> Any:
            response = _message(f"{name}Response")
            try:
                act(request, response)
            except InferenceError as error:
                engine.refusals.add_error(PROTOCOL, "", error)
                raise
            return response

        return answer

    acts: dict[str, Callable[[Any, Any], None]] = {
        "SystemSharedMemoryStatus": add_status,
        "SystemSharedMemoryRegister": lambda asked, _: regions.register(
            asked.name, asked.key, asked.offset, asked.byte_size
        ),
        "SystemSharedMemoryUnregister": lambda asked, _: regions.unregister(asked.name),
        "CudaSharedMemoryStatus": lambda asked, _: regions.check_cuda_status(asked.name),
        "CudaSharedMemoryRegister": lambda asked, _: regions.refuse_cuda(asked.name),
        "CudaSharedMemoryUnregister": lambda _asked, _: regions.check_enabled(),
    }
    return {name: answering(name, act) for name, act in acts.items()}


class EngineCallFactory(CallFactory):
    """Makes the calls of a port of the engine's process, which answers all of them."""

    def __init__(self, frontend: GrpcFrontend[InferenceEngine]) -> None:
        super().__init__(frontend)
        self._methods = _methods_by_path(frontend.engine)

    def begin(self, peer: Peer, stream: Stream, head: CallHead, request: RequestHead) -> GrpcCall:
        call, refusal = begin_call(peer, stream, head)
        path = head.path
        if refusal is not None:
            call.refuse(refusal)
        elif self.handle_inference(call):
            pass
        elif path in self._methods:
            call.handler = MethodHandler(call, self._methods[path])
        else:
            message = f"this server has no method {path[:200]}"
            call.refuse(CallRefusal.by(GrpcStatus.UNIMPLEMENTED, message, RefusalReason.UNKNOWN_ROUTE))
        return call
