"""A connection, as its calls see it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pybackend.frontend.flow import Flow
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.slices import Slices, TurnShare
from pybackend.inference.response import InferenceResponse


class CallConnection(Protocol):
    """A connection, as its calls see it.

    Attributes:
        frontend: state shared by all connections.
        loop: the event loop.
        address: the client's, for logs.
        is_secure: the connection has TLS: its transport gets copies of memory that is used again.
        flow: its bytes.
        turn_share: its share in this turn of the event loop.
        slices: its work for later turns.
        arriving_count: calls of which a large message is arriving.
    """

    frontend: GrpcFrontend
    loop: asyncio.AbstractEventLoop
    address: str
    is_secure: bool
    flow: Flow
    turn_share: TurnShare
    slices: Slices
    arriving_count: int

    def flush_soon(self) -> None:
        """Write what was sent at the end of this loop turn."""

    def release_when_written(self, response: InferenceResponse) -> None:
        """Release a response once the transport holds no views of its memory."""

    def count_held(self, difference: int) -> None:
        """Change the number of bytes that calls hold: of messages that are incomplete, or must wait.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached. Then nothing changes; fewer bytes never raise.
        """
