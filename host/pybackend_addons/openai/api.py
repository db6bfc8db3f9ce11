"""OpenAI's API: a row of :mod:`pybackend.plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybackend.frontend.http.api import Api
from pybackend.settings import ApiGroup
from pybackend_addons.openai.protocol.answer import openai_error

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pybackend.frontend.http.infer_frontend import RouteFrontend

PREFIXES = ("/v1/", "/openai/v1/")
"""Begin the paths of the API."""


class OpenAi:
    """See :class:`Api`."""

    def owns(self, path: str) -> bool:
        return path.startswith(PREFIXES)

    def group_of(self, path: str) -> ApiGroup | None:
        if not self.owns(path):
            return None
        parts = path.split("/")
        match parts[parts.index("v1") + 1 :]:
            case ["models"]:
                return ApiGroup.MODEL_REPOSITORY
            case ["models", *_]:  # a name may have slashes
                return ApiGroup.METADATA
        return ApiGroup.INFERENCE

    def error_body(self, message: str, status: int) -> bytes:
        return openai_error(message, status)

    def advice(self, *, is_served: bool) -> str:
        if is_served:
            return ": there are chat/completions, completions, embeddings and models"
        return ": OpenAI's routes are off, `pybackend serve --allow-openai` has them"

    def add_routes(self, app: FastAPI, frontend: RouteFrontend) -> None:
        from pybackend_addons.openai import routes as openai_routes

        openai_routes.add(app, frontend, PREFIXES)


OPENAI: Api = OpenAi()
