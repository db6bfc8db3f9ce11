"""The flags of the endpoints: HTTP, gRPC and metrics."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from pybackend.cli.access_flags import cors_settings, restrictions
from pybackend.cli.cloud_flags import check_safe_ports
from pybackend.cli.flag_values import add_switch, integer
from pybackend.cli.keepalive_flags import add_keepalive_flags, keepalive_settings
from pybackend.errors import ServerError
from pybackend.settings import (
    ALL_ADDRESSES,
    DEFAULT_MAX_INPUT_SIZE_BYTES,
    LOCAL_ADDRESS,
    CloudSettings,
    GrpcSettings,
    HttpSettings,
    TlsSettings,
    quarter_of_memory_bytes,
)


def add_endpoint_flags(serve: argparse.ArgumentParser) -> None:
    """Add the flags of all endpoints."""
    group = serve.add_argument_group("endpoints")
    # Both are true, unless the front end for Vertex AI is on.
    add_switch(group, "--allow-http", default=True, text="serve HTTP", depends=True)
    _add_place(group, "http", 8000)
    group.add_argument(
        "--http-max-input-size",
        type=integer(-(2**63)),
        default=DEFAULT_MAX_INPUT_SIZE_BYTES,
        metavar="BYTES",
        help=f"largest JSON part or raw body of a request [{DEFAULT_MAX_INPUT_SIZE_BYTES}]",
    )
    group.add_argument(
        "--http-memory-limit",
        type=integer(1024 * 1024),
        default=None,
        metavar="BYTES",
        help="memory limit for slowly arriving bodies and slowly read responses [a quarter of the server's]",
    )
    _add_tls(group, "http")
    add_switch(group, "--allow-grpc", default=True, text="serve gRPC", depends=True)
    _add_place(group, "grpc", 8001)
    _add_tls(group, "grpc")
    add_keepalive_flags(group)
    group.add_argument(
        "--grpc-infer-response-compression-level",
        choices=["none", "low", "medium", "high"],
        default="none",
        metavar="LEVEL",
        help="none, low, medium or high: compression of responses of inference, if clients accept it [none]",
    )
    port = integer(0, 65535)
    add_switch(group, "--allow-metrics", default=True, text="serve metrics for Prometheus")
    group.add_argument("--metrics-address", default=None, metavar="ADDRESS", help="address to listen on [as for HTTP]")
    group.add_argument("--metrics-port", type=port, default=8002, metavar="PORT", help="0 takes a free port [8002]")


def _add_place(group: argparse._ArgumentGroup, service: str, port: int) -> None:
    group.add_argument(
        f"--{service}-address",
        default="0.0.0.0",  # noqa: S104  the reference's default
        metavar="ADDRESS",
        help="address to listen on, or unix:PATH for a Unix-domain socket [0.0.0.0]",
    )
    group.add_argument(
        f"--{service}-port",
        type=integer(0, 65535),
        default=port,
        metavar="PORT",
        help=f"0 takes a free port [{port}]",
    )
    add_switch(group, f"--reuse-{service}-port", default=False, text="share the port with other servers")


def _add_tls(group: argparse._ArgumentGroup, service: str) -> None:
    add_switch(group, f"--{service}-use-ssl", default=False, text="accept TLS connections only")
    add_switch(group, f"--{service}-use-ssl-mutual", default=False, text="the same, and clients need a certificate")
    for name, text in (
        ("server-cert", "PEM file with the server's certificate"),
        ("server-key", "PEM file with the private key of the certificate"),
        ("root-cert", "PEM file with the certificates that sign those of clients [the system's]"),
    ):
        group.add_argument(f"--{service}-{name}", type=Path, default=None, metavar="FILE", help=text)


def _tls_settings(given: argparse.Namespace, service: str) -> TlsSettings | None:
    values = vars(given)
    certificate, key, root = (values[f"{service}_{name}"] for name in ("server_cert", "server_key", "root_cert"))
    mutual = values[f"{service}_use_ssl_mutual"]
    if not (mutual or values[f"{service}_use_ssl"]):
        if certificate or key or root:
            raise ServerError(f"Error: certificates are given, but not --{service}-use-ssl, which uses them.")
        return None
    if certificate is None or key is None:
        raise ServerError(f"Error: --{service}-use-ssl needs --{service}-server-cert and --{service}-server-key.")
    return TlsSettings(certificate, key, root, mutual)


def endpoint_settings(
    given: argparse.Namespace, clouds: Sequence[CloudSettings] = ()
) -> tuple[HttpSettings, GrpcSettings]:
    """The settings that the flags select.

    Args:
        given: the flags.
        clouds: front ends for clouds. Vertex AI's takes the place of HTTP and gRPC, unless these are requested.

    Raises:
        ServerError: a limit is not positive, or two endpoints have one address and port.
    """
    if given.http_max_input_size <= 0:
        raise ServerError("Error: --http-max-input-size must be greater than 0.")
    metrics_address = given.metrics_address or (
        "127.0.0.1" if given.http_address.startswith(LOCAL_ADDRESS) else given.http_address
    )
    allowed = not any(cloud.redirect_header for cloud in clouds)
    allow_http = allowed if given.allow_http is None else given.allow_http
    allow_grpc = allowed if given.allow_grpc is None else given.allow_grpc
    _check_ports(
        ("HTTP", allow_http, given.http_address, given.http_port),
        ("gRPC", allow_grpc, given.grpc_address, given.grpc_port),
        ("Metrics", given.allow_metrics, metrics_address, given.metrics_port),
        *((cloud.name, True, ALL_ADDRESSES, cloud.port) for cloud in clouds),
    )
    http = HttpSettings(
        enabled=allow_http,
        address=given.http_address,
        port=given.http_port,
        reuse_port=given.reuse_http_port,
        max_input_size_bytes=given.http_max_input_size,
        memory_limit_bytes=given.http_memory_limit or quarter_of_memory_bytes(),
        tls=_tls_settings(given, "http"),
        restrictions=restrictions(given.http_restricted_api, "api"),
        forwarded_headers=given.http_header_forward_pattern,
        cors=cors_settings(given),
        metrics_enabled=given.allow_metrics,
        metrics_address=metrics_address,
        metrics_port=given.metrics_port,
    )
    grpc = GrpcSettings(
        enabled=allow_grpc,
        address=given.grpc_address,
        port=given.grpc_port,
        tls=_tls_settings(given, "grpc"),
        reuse_port=given.reuse_grpc_port,
        restrictions=restrictions(given.grpc_restricted_protocol, "protocol"),
        forwarded_headers=given.grpc_header_forward_pattern,
        keepalive=keepalive_settings(given),
        compression_level=given.grpc_infer_response_compression_level,
    )
    check_safe_ports(given, http, grpc)
    return http, grpc


def _check_ports(*services: tuple[str, bool, str, int]) -> None:
    """Refuse two services at one address and port; each is a name, whether it is served, an address and a port."""
    for (name, served, *place), (other, other_served, *other_place) in combinations(services, 2):
        is_local = str(place[0]).startswith(LOCAL_ADDRESS)
        same = place[0] == other_place[0] if is_local else place == other_place and place[1] != 0
        if served and other_served and same:
            raise ServerError(
                f"The server cannot listen to {name} requests and {other} requests at the same address"
                f"{f' {place[0]}' if is_local else f' and port {place[0]}:{place[1]}'}"
            )
