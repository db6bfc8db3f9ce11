"""Messages between a server and the program beside it whose functions it serves, the caller.

Each is one packet on a socket that the caller makes and the server inherits: JSON with a kind and its fields. Either
side notices the other's death by the end of file.
"""

import json
import socket
from typing import Any, Dict, Tuple

READY = "ready"
"""The server serves; ``http``, ``grpc`` and ``metrics`` are the addresses of its ports."""

RUN = "run"
"""The server asks for instance ``number`` of ``model``. The socket of the instance and its pipe for nudges come with
the packet."""

LOADED = "loaded"
"""The load of ``model`` has ended; ``error`` is empty if that succeeded."""

FAILED = "failed"
"""The server cannot start, and ends; ``error`` says why."""

LOAD = "load"
"""The caller asks the server to load ``model``."""

MOST_BYTES = 64 * 1024
"""Limit of a packet."""

_MOST_TEXT = 4000
"""Longest text in a packet: its JSON may have six bytes for a character."""


def packet(kind: str, **fields: Any) -> bytes:
    """Encode a message; long texts are cut."""
    return json.dumps(
        {"kind": kind, **{name: it[:_MOST_TEXT] if isinstance(it, str) else it for name, it in fields.items()}}
    ).encode()


def message_in(data: bytes) -> "Tuple[str, Dict[str, Any]]":
    """Decode a message into its kind and its fields."""
    fields = json.loads(data)
    return fields.pop("kind"), fields


def connected_pair() -> "Tuple[socket.socket, socket.socket]":
    """A socket for these messages, both ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
