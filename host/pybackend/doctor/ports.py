"""Checks whether the server's ports are free, by binding them as the server does."""

from __future__ import annotations

from collections.abc import Iterator

from pybackend.doctor.finding import Finding, fail, ok
from pybackend.errors import ServerError
from pybackend.frontend.listening import address_of, bind
from pybackend.settings import GrpcSettings, HttpSettings


def examine(http: HttpSettings, grpc: GrpcSettings) -> Iterator[Finding]:
    """Check each port that the server would open."""
    if http.enabled:
        yield _examined(http.address, http.port, "HTTP")
    if grpc.enabled:
        yield _examined(grpc.address, grpc.port, "GRPC")
    if http.metrics_enabled:
        yield _examined(http.metrics_address, http.metrics_port, "Metrics")


def _examined(address: str, port: int, service: str) -> Finding:
    layer = f"{service} port"
    try:
        sock = bind(address, port, service)
    except ServerError as error:
        return fail(layer, f"{address}:{port} cannot be opened", str(error))
    try:
        return ok(layer, f"{address}:{port} is free" if port else f"any free one, such as {address_of(sock)}")
    finally:
        sock.close()
