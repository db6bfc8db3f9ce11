"""Runs the console: a port of this machine, the gate, and the pages behind it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from pybackend.errors import ServerError
from pybackend_tools.console.extra import require_extra
from pybackend_tools.console.gate import ConsoleAddress, Gate
from pybackend_tools.console.settings import ADDRESS, PORT, ConsoleSettings


def print_link(link: str) -> None:
    """Print a link to the console."""
    sys.stdout.write(f"Console: {link}\n")
    sys.stdout.flush()


def run(settings: ConsoleSettings, announce: Callable[[str], None], *, ends_with_input: bool = False) -> NoReturn:
    """Serve the pages until a signal arrives, and end the process. ``announce`` takes each new link.

    ``ends_with_input``: also end when standard input does, with the process that started this one.
    """
    require_extra()
    os.environ["NICEGUI_STORAGE_PATH"] = os.devnull  # the pages keep nothing in files
    import uvicorn

    from pybackend_tools.console.pages import make_app

    sock = _bound(settings.port)
    place = ConsoleAddress(sock.getsockname()[1], settings.public_url)
    gate = Gate(make_app(settings), place, announce)
    config = uvicorn.Config(
        gate,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        proxy_headers=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    if ends_with_input:
        _end_with_input(server)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn ends on them, and then sends them to itself again
    gate.open()
    asyncio.new_event_loop().run_until_complete(server.serve([sock]))
    sys.stdout.flush()
    os._exit(0 if server.started else 1)  # the interpreter would wait for threads that wait for answers


def _bound(port: int | None) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((ADDRESS, PORT if port is None else port))
    except OSError as error:
        if port is not None:
            raise ServerError(f"--port={port}: {error.strerror}. --port=0 takes a free one") from None
        sock.bind((ADDRESS, 0))
    sock.listen(128)  # before the link is printed
    return sock


def _end_with_input(server: object) -> None:
    def wait() -> None:
        while os.read(0, 1 << 16):
            pass
        server.should_exit = True  # type: ignore[attr-defined]

    threading.Thread(target=wait, daemon=True, name="pybackend-console-input").start()
