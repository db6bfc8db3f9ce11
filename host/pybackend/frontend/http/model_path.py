"""The model and version in a request's path, their description in OpenAPI, and the client's address.

Routes write a version as ``{version:digits}``, because Starlette's ``int`` raises for more than 4,300 digits.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from fastapi import Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

_INFER_TARGET = re.compile(rb"/v2/models/([^/?]+)(?:/versions/([0-9]+))?/infer(?:\?.*)?")

_ENCODED_SLASH = re.compile("%2[Ff]")
_SLASH = "\udc2f"
"""Stands for a slash within a name: no client can write it, because it is no character."""

_PARAMETERS: dict[str, dict[str, Any]] = {
    "{model_name}": {"schema": {"type": "string"}, "description": "the model's name"},
    "{version:digits}": {"schema": {"type": "integer", "minimum": 0}, "description": "a version of the model"},
}


def plain_version(digits: str) -> str:
    """A version without leading zeros."""
    return digits.lstrip("0") or "0"


def infer_target(target: bytes) -> tuple[str, str] | None:
    """The model's name and the version in the target of an infer request, ``""`` for none; None for other targets."""
    found = _INFER_TARGET.fullmatch(target)
    if found is None:
        return None
    name = unquote(found[1].decode("latin-1"), "utf-8", "replace")
    return name, plain_version(found[2].decode()) if found[2] else ""


def routed_path(raw_path: bytes) -> str:
    """A path as routes see it: decoded, except that a slash within a name, which is written ``%2F``, separates nothing."""
    return unquote(_ENCODED_SLASH.sub(_SLASH, raw_path.decode("latin-1")))


class SlashesInNames:
    """An ASGI application whose routes take names with slashes, such as those of models in namespaces.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        raw = scope.get("raw_path") or b""
        if b"%2" in raw and unquote(raw.decode("latin-1")) == scope["path"]:
            scope = {**scope, "path": routed_path(raw)}
        await self._app(scope, receive, send)


def name_in_path(request: Request, parameter: str) -> str:
    """A name in a request's path, ``""`` if the route has none."""
    name: str = request.path_params.get(parameter, "")
    return name.replace(_SLASH, "/")


class _Digits(Convertor[str]):
    """A decimal number as text, without leading zeros."""

    regex = "[0-9]+"

    def convert(self, value: str) -> str:
        return plain_version(value)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("digits", _Digits())


def model_path(path: str) -> list[dict[str, Any]]:
    """The OpenAPI parameters of a route's path."""
    return [
        {"name": part.strip("{}").partition(":")[0], "in": "path", "required": True, **description}
        for part, description in _PARAMETERS.items()
        if part in path
    ]


def model_name(request: Request) -> str:
    """The model in a request's path, ``""`` if the route has none."""
    return name_in_path(request, "model_name")


def version(request: Request) -> str:
    """The version in a request's path, ``""`` if it has none."""
    digits: str = request.path_params.get("version", "")
    return digits


def client_address(request: Request) -> str:
    """``host:port`` of the client, ``""`` if it is unknown."""
    return "" if request.client is None else f"{request.client.host}:{request.client.port}"
