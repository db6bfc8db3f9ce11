"""The flags for the life of gRPC connections: PINGs and age."""

from __future__ import annotations

import argparse
from math import inf

from pybackend.cli.flag_values import add_switch, integer
from pybackend.settings import KeepaliveSettings

_FOREVER = 2**31 - 1
"""The number of milliseconds that means no limit, as in gRPC."""


def add_keepalive_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    text = "send PINGs to clients without open calls, and allow them as many as others"
    add_switch(group, "--grpc-keepalive-permit-without-calls", default=False, text=text)
    for name, least, default, metavar, text in (
        ("keepalive-time", 1, 7_200_000, "MS", "silence after which the server sends a PING"),
        ("keepalive-timeout", 1, 20_000, "MS", "time for the client to answer it"),
        ("http2-max-pings-without-data", 0, 2, "N", "PINGs of the server between two answers; 0 for any number"),
        ("http2-min-recv-ping-interval-without-data", 0, 300_000, "MS", "least time between two PINGs of a client"),
        ("http2-max-ping-strikes", 0, 2, "N", "PINGs of a client that may come earlier; 0 for any number"),
        ("max-connection-age", 1, _FOREVER, "MS", "age at which a connection ends"),
        ("max-connection-age-grace", 0, _FOREVER, "MS", "time for its calls to end"),
    ):
        group.add_argument(
            f"--grpc-{name}",
            type=integer(least, _FOREVER),
            default=default,
            metavar=metavar,
            help=f"{text} [{'no limit' if default == _FOREVER else default}]",
        )


def keepalive_settings(given: argparse.Namespace) -> KeepaliveSettings:
    """The settings that the flags select."""
    return KeepaliveSettings(
        time_s=_seconds(given.grpc_keepalive_time),
        timeout_s=_seconds(given.grpc_keepalive_timeout),
        permit_without_calls=given.grpc_keepalive_permit_without_calls,
        max_pings_without_data=given.grpc_http2_max_pings_without_data,
        min_ping_interval_s=given.grpc_http2_min_recv_ping_interval_without_data / 1000,
        max_ping_strikes=given.grpc_http2_max_ping_strikes,
        max_age_s=_seconds(given.grpc_max_connection_age),
        max_age_grace_s=_seconds(given.grpc_max_connection_age_grace),
    )


def _seconds(milliseconds: int) -> float:
    return inf if milliseconds == _FOREVER else milliseconds / 1000
