"""Cross-origin requests: which web pages may call the HTTP port from a browser (the Fetch standard calls this CORS).

Preflights, and answers of ASGI routes, are Starlette's middleware's; answers of the protocol class get the same fields here.
"""

from __future__ import annotations

from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from pybackend.frontend.access.restrictions import Headers, only_value
from pybackend.settings import CorsSettings

_EXPOSED = ("Inference-Header-Content-Length",)
_VARY = b"vary: Origin\r\n"


class Cors:
    """The rule of one port."""

    def __init__(self, settings: CorsSettings) -> None:
        self._options: dict[str, Any] = {
            "allow_origins": sorted(settings.origins),
            "allow_methods": ["GET", "POST"],
            "allow_headers": ["*"],
            "allow_credentials": settings.credentials,
            "expose_headers": _EXPOSED,
        }
        self._origins = None if "*" in settings.origins else {origin.encode() for origin in settings.origins}
        allowed = f"access-control-expose-headers: {', '.join(_EXPOSED)}\r\n"
        if settings.credentials:
            allowed += "access-control-allow-credentials: true\r\n"
        self._allowed = allowed.encode()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The application with preflights and the fields of its answers."""
        return CORSMiddleware(app, **self._options)

    def is_preflight(self, headers: Headers) -> bool:
        """True if a request with method OPTIONS asks whether another one may be made."""
        names = {name.lower() for name, _ in headers}
        return b"origin" in names and b"access-control-request-method" in names

    def answer_fields(self, headers: Headers) -> bytes:
        """The fields for the answer to a request, each with its line end."""
        origin = only_value(headers, b"origin")
        if origin is None:
            return b""
        if self._origins is None:
            return b"access-control-allow-origin: *\r\n" + self._allowed
        if origin not in self._origins:
            return _VARY
        return b"access-control-allow-origin: %b\r\n%b%b" % (origin, self._allowed, _VARY)
