"""Checks whether the server's ports are free, by binding them as the server does."""

from __future__ import annotations

from collections.abc import Iterator

from pybackend.doctor.finding import Finding, fail, ok
from pybackend.errors import ServerError
from pybackend.frontend.listening import address_of, bind, release
from pybackend.settings import LOCAL_ADDRESS, GrpcSettings, HttpSettings


def examine(http: HttpSettings, grpc: GrpcSettings) -> Iterator[Finding]:
    """Check each port that the server would open."""
    if http.enabled:
        yield _examined(http.address, http.port, "HTTP", reuse_port=http.reuse_port)
    if grpc.enabled:
        yield _examined(grpc.address, grpc.port, "GRPC", reuse_port=grpc.reuse_port)
    if http.metrics_enabled:
        yield _examined(http.metrics_address, http.metrics_port, "Metrics")


def _examined(address: str, port: int, service: str, *, reuse_port: bool = False) -> Finding:
    layer = f"{service} port"
    place = address if address.startswith(LOCAL_ADDRESS) else f"{address}:{port}"
    try:
        sock = bind(address, port, service, reuse_port=reuse_port)
    except ServerError as error:
        return fail(layer, f"{place} cannot be opened", str(error))
    try:
        return ok(layer, f"{place} is free" if port else f"any free one, such as {address_of(sock)}")
    finally:
        release(sock)
