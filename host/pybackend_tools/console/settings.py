"""Settings of a console."""

from __future__ import annotations

from dataclasses import dataclass, field

from pybackend_client.connection import Credentials

ADDRESS, PORT = "127.0.0.1", 8003


@dataclass(frozen=True)
class ConsoleSettings:
    """The server that the console shows, and where browsers find the console."""

    url: str
    metrics_url: str | None  # ``""`` does without metrics; None asks the server where they are
    grpc_url: str  # ``host:port``, for the requests that are shown; ``""`` asks the server
    timeout_s: float
    access: Credentials = field(repr=False)
    port: int | None = None  # 0 takes a free one; None prefers ``PORT``
    public_url: str = ""
