"""The front ends of clouds: their routes and media types, translated to the v2 protocol."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

from fastapi import FastAPI, Response
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.access.restrictions import Headers, Restrictions, only_value
from pybackend.frontend.http.answer_writer import STATUS
from pybackend.protocol.documents.metadata import encode_error
from pybackend.settings import ApiGroup
from pybackend_addons.clouds.settings import CloudSettings

_JSON = "application/json"
_LENGTH_FIELD = b"inference-header-content-length"
_DIGITS = re.compile(rb"[0-9]{1,18}")


class CloudApp:
    """The ASGI application of one cloud's port.

    The restrictions of the HTTP port hold for routes that a header names. ``only_model`` gives the name of the server's
    only model, None if there are none or several.
    """

    def __init__(
        self,
        settings: CloudSettings,
        v2: FastAPI,
        restrictions: Restrictions,
        group_of: Callable[[str], ApiGroup | None],
        only_model: Callable[[], str | None],
    ) -> None:
        self._group_of = group_of
        self._settings = settings
        self._v2 = v2
        self._restrictions = restrictions
        self._only_model = only_model
        self._media_type = settings.media_type.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            translated = self._translated(scope)
        except InferenceError as error:
            await _refusal(STATUS[error.code], error.message)(scope, receive, send)
            return
        if isinstance(translated, Response):
            await translated(scope, receive, send)
            return

        async def send_translated(message: Message) -> None:
            await send(self._answer(message) if message["type"] == "http.response.start" else message)

        await self._v2(translated, receive, send_translated)

    def _translated(self, scope: Scope) -> Scope | Response:
        """The request of the v2 protocol, or an answer; an InferenceError if it names no model, or is malformed."""
        settings, headers = self._settings, scope["headers"]
        if scope["path"] == settings.health_route:
            method, path = "GET", f"/v2/health/{settings.health}"
        elif scope["path"] == settings.predict_route:
            method, path = "POST", ""
        else:
            return _refusal(404, "Not Found")
        if scope["method"] != method:
            return _refusal(405, "Method Not Allowed")
        raw_path = ""
        if not path:
            redirect = only_value(headers, settings.redirect_header.encode()) if settings.redirect_header else None
            if redirect is not None:
                path = "/" + redirect.decode("latin-1").lstrip("/")
                refusal = self._restrictions.refusal(self._group_of(path), headers)
                if refusal is not None:
                    return _refusal(403, refusal)
                method = self._method(path, headers)
            else:
                raw_path = f"/v2/models/{quote(self._model(), safe='')}/{settings.action}"
                path = unquote(raw_path)
        return {
            **scope,
            "method": method,
            "path": path,
            "raw_path": (raw_path or quote(path)).encode(),
            "query_string": b"",
            "headers": self._request_headers(headers),
        }

    def _model(self) -> str:
        name = self._settings.model or self._only_model()
        if name is None:
            raise InferenceError(
                "Expect the model repository contains only a single model if default model is not specified: set "
                f"{self._settings.model_source}",
                ErrorCode.INVALID_ARG,
            )
        return name

    def _method(self, path: str, headers: Headers) -> str:
        """The method that a route takes: the cloud passes on POST only.

        A route that takes both is read without a body.
        """
        wanted = ("GET", "POST") if only_value(headers, b"content-length") in {None, b"0"} else ("POST", "GET")
        for method in wanted:
            scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
            if any(route.matches(scope)[0] is Match.FULL for route in self._v2.routes):
                return method
        return "POST"

    def _request_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """The headers, with the length of the JSON part in the v2 protocol's."""
        content_type = only_value(headers, b"content-type") or b""
        if not content_type.lower().startswith(self._media_type):
            return list(headers)
        digits = content_type[len(self._media_type) :]
        if not _DIGITS.fullmatch(digits):
            raise InferenceError(
                f"the Content-Type has to end with the number of bytes of the JSON part: {self._settings.media_type}N",
                ErrorCode.INVALID_ARG,
            )
        return [(_LENGTH_FIELD, digits), *((name, value) for name, value in headers if name.lower() != _LENGTH_FIELD)]

    def _answer(self, message: Message) -> dict[str, Any]:
        """The head of an answer, with the length of the JSON part in the cloud's media type."""
        headers = [(name.lower(), value) for name, value in message.get("headers", ())]
        length = only_value(headers, _LENGTH_FIELD)
        if length is None:
            return dict(message)
        kept = [field for field in headers if field[0] not in {_LENGTH_FIELD, b"content-type"}]
        return {**message, "headers": [*kept, (b"content-type", self._media_type + length)]}


def _refusal(status: int, message: str) -> Response:
    return Response(encode_error(message), status, media_type=_JSON)
