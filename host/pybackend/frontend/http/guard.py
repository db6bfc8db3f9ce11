"""The guard of a port for HTTP: how a target names a path, and the answer to a call that may not be made."""

from __future__ import annotations

from pybackend.engine.refusals import RefusalReason, Refusals
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.access.restrictions import Headers
from pybackend.frontend.http.cors import Cors
from pybackend.frontend.http.request_reader import path_of
from pybackend.frontend.http.routes import infer_target, routed_path

Refused = tuple[int, str, bytes]
"""The answer to a call that may not be made: status, message, and further fields of its head, each with its line end."""


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
        return "/v2/models/-/infer"
    path = path_of(target)
    return routed_path(path) if b"%" in path else path.decode("latin-1")
