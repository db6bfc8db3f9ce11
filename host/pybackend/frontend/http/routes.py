"""The routes of the application: how they are added and described, and what their paths say.

Routes write a version as ``{version:digits}``, because Starlette's ``int`` raises for more than 4,300 digits.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI, Request, Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from pybackend.frontend.access.restrictions import Headers

WRITTEN_HEADERS = "pybackend.headers"
"""The member of a scope with the headers as they were sent: ASGI has their names in lower case."""

_INFER_TARGET = re.compile(rb"/v2/models/([^/?]+)(?:/versions/([0-9]+))?/infer(?:\?.*)?")

_ENCODED_SLASH = re.compile("%2[Ff]")
_SLASH = "\udc2f"
"""Stands for a slash within a name: no client can write it, because it is no character."""

_PARAMETERS: dict[str, dict[str, Any]] = {
    "{model_name}": {"schema": {"type": "string"}, "description": "the model's name"},
    "{region}": {"schema": {"type": "string"}},
    "{version:digits}": {"schema": {"type": "integer", "minimum": 0}, "description": "a version of the model"},
}


_DOCUMENT = {"description": "a JSON document", "content": {"application/json": {"schema": {}}}}
_REFUSALS = ("400", "404", "500", "501", "503")

MODEL = "/v2/models/{model_name}"
VERSION = MODEL + "/versions/{version:digits}"


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


def as_get(scope: Scope) -> Scope:
    """HEAD asks what GET would answer: who sends the answer leaves its body out, and routes need not know."""
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope


class RoutedRequests:
    """Requests as routes see them: names may have slashes, such as those of models in namespaces, and there is no HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%2" in raw and unquote(raw.decode("latin-1")) == scope["path"]:
            scope = {**scope, "path": routed_path(raw)}
        await self._app(as_get(scope), receive, send)


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


def add_route(
    app: FastAPI,
    method: str,
    path: str,
    tag: str,
    summary: str,
    answer: Callable[[Request], Awaitable[Response]],
    *,
    body: Mapping[str, Any] | None = None,
    body_required: bool = True,
    answers: Mapping[str, Any] | None = None,
    errors: Mapping[str, Any] | None = None,
    parameters: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Add a route, with its part of the OpenAPI document.

    Handlers take the raw request: building validators for a name and a number would cost more than the rest of the
    application's start.

    ``body`` is the content of a request by media type, ``answers`` the successful answer, a JSON document if it is not
    given, and ``errors`` the schema of the others; ``parameters`` are those beside the path's.
    """
    described = [
        {"name": part.strip("{}").partition(":")[0], "in": "path", "required": True, **description}
        for part, description in _PARAMETERS.items()
        if part in path
    ]
    openapi: dict[str, Any] = {"parameters": [*described, *parameters]}
    if body is not None:
        openapi["requestBody"] = {"required": body_required, "content": body}
    refusal = {
        "description": "the mistake and how to correct it",
        "content": {"application/json": {"schema": errors or object_schema(error={"type": "string"})}},
    }
    openapi["responses"] = {"200": answers or _DOCUMENT, **dict.fromkeys(_REFUSALS, refusal)}
    app.add_api_route(
        path,
        answer,
        methods=[method],
        tags=[tag],
        summary=summary,
        name=path,
        response_model=None,
        openapi_extra=openapi,
    )


def object_schema(*required: str, **properties: Any) -> dict[str, Any]:
    """The schema of a JSON object."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


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


def written_headers(request: Request) -> Headers:
    """The headers, whose names are as the client wrote them if this server's own port has read them.

    Else they are in lower case.
    """
    headers: Headers = request.scope.get(WRITTEN_HEADERS, request.headers.raw)
    return headers


async def disconnected(request: Request) -> None:
    """Return when the client disconnects. Its request must have been read to the end."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
