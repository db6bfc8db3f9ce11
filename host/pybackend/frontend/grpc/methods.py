"""The methods of ``inference.GRPCInferenceService`` beside inference, and of ``grpc.health.v1.Health``."""

from __future__ import annotations

from typing import Any

from pybackend import __version__
from pybackend.engine.engine import EngineState, InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.grpc import reflection
from pybackend.frontend.grpc.unary_call import Method
from pybackend.modelconfig.parser import serialize_config
from pybackend.protocol.metadata import tensor_documents
from pybackend.schema.messages import message_class

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

EXTENSIONS = (
    "classification",
    "sequence",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
)
"""Those of the protocol's extensions that this front end has, in the protocol's order."""


def methods(engine: InferenceEngine) -> dict[str, Method]:
    """The methods by path, ``/package.Service/Method``."""
    served = _Methods(engine)
    found = {
        f"/{INFERENCE}/{name}": Method(f"inference.{name}Request", answer)
        for name, answer in {
            "ServerLive": served.server_live,
            "ServerReady": served.server_ready,
            "ModelReady": served.model_ready,
            "ServerMetadata": served.server_metadata,
            "ModelMetadata": served.model_metadata,
            "ModelConfig": served.model_config,
        }.items()
    }
    found[f"/{HEALTH}/Check"] = Method("grpc.health.v1.HealthCheckRequest", served.health)
    found[f"/{HEALTH}/List"] = Method("grpc.health.v1.HealthListRequest", served.health_list)
    for package in reflection.PACKAGES:
        path = f"/{package}.ServerReflection/ServerReflectionInfo"
        reflector = reflection.Reflection(package, (INFERENCE, HEALTH))
        found[path] = Method(f"{package}.ServerReflectionRequest", reflector.answer, streams=True)
    return found


def _message(message_name: str, /, **fields: Any) -> Any:
    return message_class(f"inference.{message_name}")(**fields)


class _Methods:
    """Answers the methods from an engine."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine

    def _refuse_while_exiting(self) -> None:
        if self._engine.state is EngineState.EXITING:
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
            ready = await self._engine.open(request.name, request.version).is_ready()
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
