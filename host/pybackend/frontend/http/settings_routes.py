"""The routes that read and change settings of the running server: its log."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from pybackend.errors import ErrorCode, InferenceError
from pybackend.observability.logging import LOG
from pybackend.protocol.log_document import log_changes_in, log_document

_JSON = "application/json"

LARGEST_BODY_BYTES = 64 * 1024


def add(app: FastAPI) -> None:
    """Add the routes."""

    async def log_settings(_request: Request) -> Response:
        return Response(log_document(LOG.settings), media_type=_JSON)

    async def change_log_settings(request: Request) -> Response:
        LOG.change(**log_changes_in(await _body(request)))
        return Response(log_document(LOG.settings), media_type=_JSON)

    get: dict[str, Any] = {"tags": ["logging"], "response_model": None}
    app.get("/v2/logging", summary="The settings of the log", **get)(log_settings)
    app.post("/v2/logging", summary="Change settings of the log", **get)(change_log_settings)


async def _body(request: Request) -> bytes:
    """The body of a request.

    Raises:
        InferenceError: it is too large.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BODY_BYTES:
            raise InferenceError(
                f"the body exceeds {LARGEST_BODY_BYTES} bytes, and settings need far fewer", ErrorCode.INVALID_ARG
            )
    return bytes(body)
