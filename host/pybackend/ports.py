"""Finds ports."""

import socket
from contextlib import ExitStack


def free_ports(address: str, count: int = 1) -> list[int]:
    """Different ports that nobody listens on now; a program that is to listen there finds out if that has changed."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((address, 0))
        return [each.getsockname()[1] for each in sockets]
