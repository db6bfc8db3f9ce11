"""The guard of a port for HTTP: who may call, from which web pages, and the answer to a call that may not be made.

Starlette's middleware answers preflights, and adds the fields for other origins to answers of ASGI routes; others get
them here.
"""

import logging
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from pybackend.engine.answers import RefusalReason, Refusals
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.access.restrictions import Headers
from pybackend.frontend.http.request_reader import path_of
from pybackend.frontend.http.routes import infer_target, routed_path
from pybackend.settings import CorsSettings, is_origin

log = logging.getLogger(__name__)

_EXPOSED = ("Inference-Header-Content-Length",)
INFER_PATH = "/v2/models/-/infer"
"""Stands for all targets of inference, however their names are written."""

_VARY = b"vary: Origin\r\n"
_NAMELESS = "null"
"""Browsers' word for the origin of a page that has none; here it stands for all that no flag can name."""

_MOST_NAMED = 64
_LONGEST_NAMED = 200


class Cors:
    """The rule of one port.

    Without origins no page may call: the log then says which one tried, and what would let it.
    """

    def __init__(self, settings: CorsSettings) -> None:
        self._options: dict[str, Any] = {
            "allow_origins": sorted(settings.origins),
            "allow_methods": ["GET", "POST"],
            "allow_headers": ["*"],
            "allow_credentials": settings.credentials,
            "expose_headers": _EXPOSED,
        }
        self._named: set[str] = set()  # the pages that the log has named
        self._origins = None if "*" in settings.origins else {origin.encode() for origin in settings.origins}
        allowed = f"access-control-expose-headers: {', '.join(_EXPOSED)}\r\n"
        if settings.credentials:
            allowed += "access-control-allow-credentials: true\r\n"
        self._allowed = allowed.encode()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The application with preflights and the fields of its answers."""
        return app if self._is_off else CORSMiddleware(app, **self._options)

    def is_preflight(self, headers: Headers) -> bool:
        """True if a request with method OPTIONS asks whether another one may be made."""
        if self._is_off:
            return False
        names = {name.lower() for name, _ in headers}
        return b"origin" in names and b"access-control-request-method" in names

    @property
    def _is_off(self) -> bool:
        return self._origins is not None and not self._origins

    def answer_fields(self, origin: bytes, host: bytes) -> bytes:
        """The fields for the answer to a request of a page of this origin, sent to ``host``; each with its line end."""
        if self._origins is None:
            return b"access-control-allow-origin: *\r\n" + self._allowed
        if origin not in self._origins:
            if origin.partition(b"://")[2] != host:
                self._name(origin.decode("latin-1"))
            return b"" if self._is_off else _VARY
        return b"access-control-allow-origin: %b\r\n%b%b" % (origin, self._allowed, _VARY)

    def _name(self, origin: str) -> None:
        """Say once for each page, and of so many pages, which flag would let it call."""
        name = origin if is_origin(origin) and len(origin) <= _LONGEST_NAMED and origin.isprintable() else _NAMELESS
        if name in self._named or len(self._named) > _MOST_NAMED:
            return
        self._named.add(name)
        if len(self._named) > _MOST_NAMED:
            log.warning(
                "further web pages that no --http-cors-origin allows have called: the log names no more of them"
            )
        elif name == _NAMELESS:
            log.warning(
                "a web page without an origin has called, such as one opened from disk, and browsers withhold the answers from it: "
                "serve it with `python -m http.server 3000`, open it at http://localhost:3000, and start this server with "
                "--http-cors-origin=http://localhost:3000 (or with --http-cors-origin=* for all pages)"
            )
        else:
            log.warning(
                "a web page of %s has called, and browsers withhold the answers from it: start this server with "
                "--http-cors-origin=%s to allow it",
                name,
                name,
            )


Refused = tuple[int, str, bytes]
"""The answer to a call that may not be made: status, message, and further fields of its head, each with its line end.
"""


class HttpGuard:
    """The guard.

    The port's rule for web pages matters here, because their questions before a call (preflights) carry no key.
    """

    def __init__(self, protocol: str, guard: Guard, refusals: Refusals, cors: Cors | None = None) -> None:
        self._protocol = protocol
        self.guard = guard
        self._refusals = refusals
        self._cors = cors

    def refusal(self, method: bytes, target: bytes, headers: Headers, sender: str) -> Refused | None:
        """The answer to a call that may not be made; None if it may.

        Raises:
            MalformedRequestError: the target has no path.
        """
        if self._cors is not None and method == b"OPTIONS" and self._cors.is_preflight(headers):
            return None
        denial = self.guard.denial(_path(target), headers)
        if denial is None:
            return None
        self._refusals.add(self._protocol, RefusalReason.DENIED, denial.message, sender=sender)
        if denial.lacks_key:
            return 401, denial.message, b"www-authenticate: Bearer\r\n"
        return 403, denial.message, b""


def _path(target: bytes) -> str:
    """The path that decides who answers: that of infer as it is written, all others decoded as for ASGI."""
    if infer_target(target) is not None:
        return INFER_PATH
    path = path_of(target)
    return routed_path(path) if b"%" in path else path.decode("latin-1")
