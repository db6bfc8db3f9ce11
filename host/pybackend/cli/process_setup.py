"""What a command does to its process while it is a server: signals, limits, and the garbage collector."""

import asyncio
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread

from pybackend.observability.logging import LOG
from pybackend.plugins import COMPANIONS
from pybackend.runner import Addresses, Visitor
from pybackend.server import Server
from pybackend.settings import EXIT_INTERRUPTED, Settings

log = logging.getLogger(__name__)

GC_THRESHOLD = 20_000
"""Container allocations between collections. A request makes a few dozen and leaves no cycles, so the default of 700
would run the collector several times per turn of the loop."""

_END_S = 10.0
"""How long a visitor may take to end after its server."""


class _Visit:
    """A visitor in a thread. One that never ends does not keep the process alive: it may run code of a user."""

    def __init__(self, visitor: Visitor, url: str) -> None:
        ended: Future[int] = Future()
        ended.set_running_or_notify_cancel()
        self.status = asyncio.wrap_future(ended)
        self.thread = Thread(target=self._run, args=(visitor, url, ended), daemon=True)
        self.thread.start()

    @staticmethod
    def _run(visitor: Visitor, url: str, ended: Future[int]) -> None:
        try:
            ended.set_result(visitor(url))
        except BaseException as error:  # noqa: BLE001  it is raised where the status is awaited
            ended.set_exception(error)


async def run_server(server: Server, settings: Settings, visitor: Visitor | None) -> int:
    """Serve until a signal arrives and return the exit status; see :meth:`Server.run`.

    ``visitor`` runs in a thread once the models are loaded; the server stops when it returns. A signal before that is
    EXIT_INTERRUPTED.
    """
    raise_descriptor_limit()
    visits: list[_Visit] = []
    _handle_signals(server, visits)
    _handle_hangup(server, settings)

    endings: list[Callable[[], None]] = []

    def on_ready() -> None:
        settle_collector()
        addresses = Addresses(**server.ports.addresses, diagnostics_headers=server.diagnostics_key.headers)
        for companion in [row.load_if_installed() for row in COMPANIONS]:
            end = None if companion is None else companion.start(settings, addresses)
            if end is not None:
                endings.append(end)
        if visitor is not None:
            visits.append(_Visit(visitor, f"http://{addresses.http}"))
            visits[0].status.add_done_callback(lambda _status: server.stop())

    try:
        status = await server.run(on_ready, is_told=visitor is None)
    finally:
        for end in endings:
            end()
    if visitor is None:
        return status
    if visits:
        await asyncio.to_thread(visits[0].thread.join, _END_S)
    if not visits or visits[0].status.cancelled():
        return EXIT_INTERRUPTED
    return status or visits[0].status.result()


def _handle_signals(server: Server, visits: Sequence[_Visit]) -> None:
    def on_signal(number: int) -> None:
        log.info("Signal (%d) received.", number)
        if server.is_stopping:
            log.warning("Second signal received: running requests are cut short.")
            server.hurry()
        server.stop()
        for visit in visits:
            visit.status.cancel()  # its thread goes on until the server closes the connection

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)


def _handle_hangup(server: Server, settings: Settings) -> None:
    """On SIGHUP open the log's file again, and read the API keys, the certificates and the pools again.

    A server without any of these ends with its terminal; a service has none, and goes on.
    """
    has_files = settings.http.tls or settings.grpc.tls or settings.api_keys or settings.pools_file
    if not (has_files or LOG.has_file) and _has_terminal():
        return

    def on_hangup() -> None:
        if LOG.has_file:
            LOG.reopen()
        if has_files:
            for each in server.followed:
                each.read_again()
        if not (has_files or LOG.has_file):
            log.info("Signal (1) received: there is no log file, certificate or key to read again.")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)


def settle_collector() -> None:
    """Keep the garbage collector away from what lasts, once the models are loaded."""
    # Existing objects are permanent: freezing them keeps the collector from traversing them again and again.
    gc.collect()
    gc.freeze()
    # Full collections wait until a quarter more objects live than at the latest one: the frozen ones must not count.
    gc.collect()
    gc.set_threshold(GC_THRESHOLD)


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal, whose end sends SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def raise_descriptor_limit() -> None:
    """Raise the limit on open files to the system's maximum for this user: each connection takes a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
