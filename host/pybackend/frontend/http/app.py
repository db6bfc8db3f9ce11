"""The FastAPI application: every route of the v2 protocol but the fast way of infer, and the OpenAPI document."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import FastAPI, Path, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from pybackend import __version__
from pybackend.engine import EngineState, InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.http import infer_route
from pybackend.frontend.http.errors import STATUS
from pybackend.model.model import Model
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.metadata import encode_error, model_metadata, server_metadata

_JSON = "application/json"

ModelName = Annotated[str, Path(description="the model's name", min_length=1)]
Version = Annotated[int, Path(description="a version of the model", ge=0)]


def make_app(engine: InferenceEngine, limits: BodyLimits) -> FastAPI:
    """The application that serves an engine.

    Args:
        engine: where requests go.
        limits: bounds of infer bodies.
    """
    app = FastAPI(
        title="pybackend",
        version=__version__,
        description="The v2 inference protocol (KServe) with the binary tensor extension.",
        redirect_slashes=False,
        redoc_url=None,
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(InferenceError, _inference_error)
    _add_health(app, engine)
    _add_metadata(app, engine)
    infer_route.add(app, engine, limits)

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    return app


def _add_health(app: FastAPI, engine: InferenceEngine) -> None:
    @app.get("/v2/health/live", tags=["health"], summary="Does the server run?")
    async def live() -> Response:
        _refuse_while_exiting(engine)
        return Response()

    @app.get("/v2/health/ready", tags=["health"], summary="Should clients send requests?")
    async def ready() -> Response:
        _refuse_while_exiting(engine)
        return Response(status_code=200 if engine.is_ready else 400)

    def model_ready(name: str, version: int | None) -> Response:
        _refuse_while_exiting(engine)
        try:
            if engine.model(name, "" if version is None else str(version)).is_ready:
                return Response()
        except InferenceError:
            pass  # an unknown model is not ready, whatever else there is to say about it
        raise InferenceError("Model version not ready", ErrorCode.INVALID_ARG)

    @app.get("/v2/models/{model_name}/ready", tags=["health"], summary="Does the model serve?")
    async def newest_ready(model_name: ModelName) -> Response:
        return model_ready(model_name, None)

    @app.get("/v2/models/{model_name}/versions/{version:int}/ready", tags=["health"], summary="Does the version serve?")
    async def version_ready(model_name: ModelName, version: Version) -> Response:
        return model_ready(model_name, version)


def _add_metadata(app: FastAPI, engine: InferenceEngine) -> None:
    @app.get("/v2", tags=["metadata"], summary="Name, version and extensions of the server")
    async def server() -> Response:
        return Response(server_metadata(engine.server_id, __version__), media_type=_JSON)

    def metadata(model: Model, versions: list[str]) -> Response:
        platform = model.config.platform or model.config.backend
        return Response(model_metadata(model.signature, versions, platform), media_type=_JSON)

    @app.get("/v2/models/{model_name}", tags=["metadata"], summary="Inputs and outputs of a model")
    async def newest_metadata(model_name: ModelName) -> Response:
        model = engine.model(model_name)
        return metadata(model, [each.version for each in engine.repository.ready_versions(model_name)])

    @app.get("/v2/models/{model_name}/versions/{version:int}", tags=["metadata"], summary="Inputs and outputs")
    async def version_metadata(model_name: ModelName, version: Version) -> Response:
        model = engine.model(model_name, str(version))
        return metadata(model, [model.version])

    def config(model: Model) -> Response:
        return Response(msgspec.json.encode(model.config.document), media_type=_JSON)

    @app.get("/v2/models/{model_name}/config", tags=["metadata"], summary="The effective configuration")
    async def newest_config(model_name: ModelName) -> Response:
        return config(engine.model(model_name))

    @app.get("/v2/models/{model_name}/versions/{version:int}/config", tags=["metadata"], summary="The configuration")
    async def version_config(model_name: ModelName, version: Version) -> Response:
        return config(engine.model(model_name, str(version)))


def _refuse_while_exiting(engine: InferenceEngine) -> None:
    if engine.state is EngineState.EXITING:
        raise InferenceError("Server exiting", ErrorCode.UNAVAILABLE)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Response(encode_error(error.detail), error.status_code, headers=error.headers, media_type=_JSON)


async def _inference_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, InferenceError)
    return Response(encode_error(error.message), STATUS[error.code], media_type=_JSON)
