"""HTTP status by error code, in one table, and the body of an error."""

from __future__ import annotations

from http import HTTPStatus

from pybackend.errors import ErrorCode

STATUS: dict[ErrorCode, HTTPStatus] = {
    ErrorCode.UNKNOWN: HTTPStatus.BAD_REQUEST,
    ErrorCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    ErrorCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.INVALID_ARG: HTTPStatus.BAD_REQUEST,
    ErrorCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.UNSUPPORTED: HTTPStatus.NOT_IMPLEMENTED,
    ErrorCode.ALREADY_EXISTS: HTTPStatus.BAD_REQUEST,
    ErrorCode.CANCELLED: HTTPStatus.BAD_REQUEST,
}

INTERNAL = "internal error: see the server's log"
"""The answer to a mistake of the server's own."""
