"""The bound ports of a server: they are bound before models load, so that a port that is in use ends the server at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from ssl import SSLContext

from pybackend.errors import ServerError
from pybackend.frontend.followed_files import FollowedFiles
from pybackend.frontend.listening import address_of, bind, bind_for, release
from pybackend.frontend.tls import Pem, PortCertificates, port_certificates
from pybackend.settings import ALL_ADDRESSES, FurtherPortSettings, Settings


@dataclass
class BoundPorts:
    """The sockets, and what makes them secure.

    Empty or None for a service that is switched off, and None for a plain port.

    HTTP and gRPC have a socket for each front end, or one if there are none.
    """

    http: list[socket.socket] = field(default_factory=list)
    grpc: list[socket.socket] = field(default_factory=list)
    metrics: socket.socket | None = None
    further: dict[FurtherPortSettings, socket.socket] = field(default_factory=dict)
    http_tls: PortCertificates | None = None
    grpc_tls: PortCertificates | None = None

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the ports for HTTP, gRPC and metrics, by ``http``, ``grpc`` and ``metrics``.

        Empty if there is none.
        """
        first = {"http": self.http[:1], "grpc": self.grpc[:1], "metrics": [self.metrics] if self.metrics else []}
        return {name: address_of(sockets[0]) if sockets else "" for name, sockets in first.items()}

    @property
    def followed(self) -> list[FollowedFiles[tuple[SSLContext, Pem]]]:
        """The files of the certificates."""
        return [each.files for each in (self.http_tls, self.grpc_tls) if each is not None]

    def leave_to_parent(self) -> None:
        """In a forked child of the process: let go of the ports, which are the parent's."""
        for sock in self._all():
            if sock.fileno() >= 0:
                os.close(sock.detach())

    def release(self) -> None:
        for sock in self._all():
            release(sock)

    def _all(self) -> Iterator[socket.socket]:
        yield from (*self.http, *self.grpc, *self.further.values())
        if self.metrics is not None:
            yield self.metrics


def bind_ports(settings: Settings) -> BoundPorts:
    """Bind the ports of the settings. Raises ServerError if one is unavailable."""
    http, grpc = settings.http, settings.grpc
    bound = BoundPorts(
        http_tls=port_certificates(http.tls, "http", "http/1.1"), grpc_tls=port_certificates(grpc.tls, "grpc", "h2")
    )
    bind_all = partial(bind_for, settings.front_ends) if settings.front_ends else _bind_one
    try:
        if http.enabled:
            bound.http = bind_all(http.address, http.port, "HTTP", reuse_port=http.reuse_port)
        if grpc.enabled:
            bound.grpc = bind_all(grpc.address, grpc.port, "GRPC", reuse_port=grpc.reuse_port)
        if http.metrics_enabled:
            bound.metrics = bind(http.metrics_address, http.metrics_port, "Metrics")
        for further in settings.further_ports:
            bound.further[further] = bind(ALL_ADDRESSES, further.port, further.name)
    except ServerError:
        bound.release()
        raise
    return bound


def _bind_one(address: str, port: int, service: str, *, reuse_port: bool) -> list[socket.socket]:
    return [bind(address, port, service, reuse_port=reuse_port)]
