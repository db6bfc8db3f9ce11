"""The rules of all ports, made once from the operator's settings: who may call, and which headers models see."""

import logging
import socket
from collections.abc import Callable

from pybackend.engine.answers import Refusals
from pybackend.frontend.access.api_keys import ApiKeys, KnownKeys
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.access.groups import grpc_group
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.access.restrictions import Restrictions
from pybackend.frontend.grpc.head import RESTRICTED_PREFIX, CallPolicy
from pybackend.frontend.http.api import Apis
from pybackend.frontend.http.guard import Cors, HttpGuard
from pybackend.frontend.listening import address_of, is_local
from pybackend.settings import ApiGroup, FurtherPortSettings, KeyExemption, Restriction, Settings

log = logging.getLogger(__name__)

_RESTRICTED_API = "This API is restricted, expecting header"


class AccessRules:
    """The rules. In a process that was handed the ``keys``, the settings have digests in the place of secrets."""

    keys: KnownKeys | None  # the API keys; None if calls need none. A ServerError says that their file cannot be used.

    def __init__(
        self,
        settings: Settings,
        refusals: Refusals,
        apis: Apis,
        *,
        is_handed: bool = False,
        keys: KnownKeys | None = None,
    ) -> None:
        self.apis = apis  # on the port for HTTP, beside v2
        http, own_keys = settings.http, settings.api_keys
        self._has_digests = is_handed
        self._settings = settings
        self._refusals = refusals
        self._exempt = frozenset[KeyExemption]() if own_keys is None else own_keys.exempt
        self.keys = keys if is_handed or own_keys is None else ApiKeys(own_keys.file)
        self.cors = Cors(http.cors)  # the web pages that may call the HTTP port
        # headers of HTTP requests that models see; None for none
        self.http_forwards = _forwards(http.forwarded_headers)

    def http_guard(self) -> HttpGuard | None:
        """The guard of the port for HTTP; None if all calls may pass."""
        restrictions = self._settings.http.restrictions
        guard = self._guard(restrictions, self.http_restrictions, self.apis.group_of)
        return None if guard is None else HttpGuard("http", guard, self._refusals, self.cors)

    def metrics_guard(self) -> HttpGuard | None:
        """The guard of the port for metrics; None if all calls may pass."""
        if KeyExemption.METRICS in self._exempt:
            return None
        guard = self._guard((), Restrictions(()), lambda _path: None)
        return None if guard is None else HttpGuard("metrics", guard, self._refusals)

    def further_guard(self, port: FurtherPortSettings) -> HttpGuard | None:
        """The guard of a further port; None if all calls may pass."""
        if port.exemption in self._exempt:
            return None
        health = {port.health_route: ApiGroup.HEALTH}
        guard = self._guard((), Restrictions(()), health.get)
        return None if guard is None else HttpGuard(port.name, guard, self._refusals)

    @property
    def http_restrictions(self) -> Restrictions:
        """The headers that routes need."""
        given = self._settings.http.restrictions
        return Restrictions(given, "", _RESTRICTED_API, has_digests=self._has_digests)

    def call_policy(self) -> CallPolicy | None:
        """The rules of the port for gRPC; None if there are none."""
        grpc = self._settings.grpc
        guard = self._guard(
            grpc.restrictions,
            Restrictions(
                grpc.restrictions,
                RESTRICTED_PREFIX.decode(),
                "This protocol is restricted, expecting header",
                has_digests=self._has_digests,
            ),
            grpc_group,
        )
        forwards = _forwards(grpc.forwarded_headers)
        return None if guard is None and forwards is None else CallPolicy(guard, forwards)

    def _guard(
        self,
        given: tuple[Restriction, ...],
        restrictions: Restrictions,
        group_of: Callable[[str], ApiGroup | None],
    ) -> Guard | None:
        if self.keys is None and not given:
            return None
        opened = frozenset({ApiGroup.HEALTH}) if KeyExemption.HEALTH in self._exempt else frozenset[ApiGroup]()
        return Guard(self.keys, restrictions, group_of, opened)

    def warn(self, service: str, sock: socket.socket, *, secure: bool) -> None:
        """Warn if others could read API keys on their way to a port."""
        if self.keys is None or secure or is_local(sock):
            return
        if service == "metrics" and KeyExemption.METRICS in self._exempt:
            return
        remedies = {"HTTP": "--http-use-ssl", "gRPC": "--grpc-use-ssl"}
        log.warning(
            "API keys cross the network in plain text: the port for %s listens on %s without TLS. Use %s, or an address that "
            "only this machine can reach.",
            service,
            address_of(sock),
            remedies.get(service, "a proxy with TLS"),
        )


def _forwards(pattern: str) -> ForwardedHeaders | None:
    return ForwardedHeaders(pattern) if pattern else None
