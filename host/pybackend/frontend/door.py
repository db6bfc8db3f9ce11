"""Accepts or refuses new connections, depending on the number of open ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from pybackend.frontend.descriptor_reserve import is_reserved

log = logging.getLogger(__name__)

_COMPLAINT_S = 60.0


class Door(asyncio.Protocol):
    """A new connection.

    Args:
        protocol: makes the protocol object for an accepted connection.
        refusal: sent to a client that is not accepted.
    """

    def __init__(self, protocol: Callable[[], asyncio.Protocol], refusal: bytes) -> None:
        self._protocol = protocol
        self._refusal = refusal

    def connection_made(self, transport: Any) -> None:
        """Accept or refuse the connection."""
        if is_reserved(transport.get_extra_info("socket").fileno()):
            transport.write(self._refusal)
            transport.close()
            complain()
            return
        protocol = self._protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


_complained_s = -_COMPLAINT_S


def complain() -> None:
    """Log, from time to time, that clients are refused."""
    global _complained_s
    now_s = time.monotonic()
    if now_s - _complained_s >= _COMPLAINT_S:
        _complained_s = now_s
        log.warning(
            "Clients use all descriptors available to them, and further connections are refused. A higher limit of "
            "open files (ulimit -n) allows more."
        )
