"""Starts the gRPC port."""

from __future__ import annotations

import asyncio
import socket

from pybackend.frontend.grpc.connection import GrpcConnection
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.method_table import MethodTable
from pybackend.frontend.tls import PortCertificates


async def start(frontend: GrpcFrontend, sock: socket.socket, tls: PortCertificates | None = None) -> None:
    """Accept connections on a bound socket; with ``tls``, secure ones only."""
    loop, methods = asyncio.get_running_loop(), MethodTable(frontend)
    await frontend.listen(sock, lambda: GrpcConnection(frontend, methods, loop), b"", tls)
