"""The API of MLflow's server: a row of :mod:`pybackend.plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybackend.frontend.http.api import Api
from pybackend.settings import ApiGroup
from pybackend_addons.mlflow.protocol import mlflow_error

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pybackend.frontend.http.infer_frontend import RouteFrontend

_GROUPS = {
    "/invocations": ApiGroup.INFERENCE,
    "/ping": ApiGroup.HEALTH,
    "/health": ApiGroup.HEALTH,
    "/version": ApiGroup.METADATA,
}


class MlflowServer:
    """See :class:`Api`."""

    def owns(self, path: str) -> bool:
        """Whether a path is one of predictions: only their errors have another form."""
        return path.endswith("/invocations")

    def group_of(self, path: str) -> ApiGroup | None:
        match path.split("/"):
            case ["", "v2", "models", _, "invocations"] | ["", "v2", "models", _, "versions", _, "invocations"]:
                return ApiGroup.INFERENCE
        return _GROUPS.get(path)

    def error_body(self, message: str, status: int) -> bytes:
        return mlflow_error(message, status)

    def advice(self, *, is_served: bool) -> str:
        return "" if is_served else ": MLflow's routes are off, `pybackend serve --allow-mlflow` has them"

    def add_routes(self, app: FastAPI, frontend: RouteFrontend) -> None:
        from pybackend_addons.mlflow import routes as mlflow_routes

        mlflow_routes.add(app, frontend)


MLFLOW: Api = MlflowServer()
