"""The flow of bytes between clients and the server: how fast each client is, and how much memory its bytes take meanwhile.

Clients must keep a minimum rate. One account covers the bytes that are buffered for all clients of all ports: incomplete requests,
and unread responses. When memory is short, there or in a model's process, the slowest of the slow clients are disconnected.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import termios
from collections.abc import Callable, Iterable
from enum import Enum
from struct import Struct
from typing import Any, Protocol

from pybackend.engine.admission import ClientAdmission
from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer

log = logging.getLogger(__name__)

LOWEST_RATE_BYTES_PER_S = 1024
"""Minimum average rate at which clients must send a request or read a response."""

STALLED_SECONDS = 60
"""A client this far behind the minimum rate is disconnected, as is one that transfers nothing for this long."""

IDLE_SECONDS = 600
"""Idle connections are closed after this time. It is long because clients pool connections."""

SLOW_RATE_BYTES_PER_S = 64 * 1024
SLOW_AFTER_SECONDS = 5
"""If memory is short, clients below this rate for this long are disconnected."""

UNCOUNTED_BYTES = 64 * 1024
"""Buffered for any client without being counted."""

_INT = Struct("i")


class Pace:
    """The rate of consecutive transfers.

    Attributes:
        behind_s: how far the client is behind the minimum rate.
        seconds: duration of the current transfer.
    """

    __slots__ = ("_latest", "behind_s", "seconds")

    def __init__(self) -> None:
        self.rest()

    def rest(self) -> None:
        """Mark the transfer as idle: there is nothing to send or read."""
        self.behind_s = 0.0
        self._latest: tuple[float, ...] = ()
        self.seconds = 0

    def advance(self, seconds: int, moved_bytes: int) -> None:
        """Record the bytes transferred in this time, at least a second."""
        self._latest = (*self._latest, *[moved_bytes / seconds] * min(seconds, SLOW_AFTER_SECONDS))[
            -SLOW_AFTER_SECONDS:
        ]
        self.seconds += seconds
        self.behind_s = max(0.0, self.behind_s + seconds - moved_bytes / LOWEST_RATE_BYTES_PER_S)

    @property
    def rate_bytes_per_s(self) -> float:
        """The average rate of the latest five seconds: what was transferred before them counts for nothing."""
        return sum(self._latest) / max(1, len(self._latest))

    @property
    def has_stalled(self) -> bool:
        """True if the client must be disconnected."""
        return self.behind_s >= STALLED_SECONDS

    @property
    def is_slow(self) -> bool:
        """True if the client may be disconnected when memory is short."""
        return self.seconds >= SLOW_AFTER_SECONDS and self.rate_bytes_per_s < SLOW_RATE_BYTES_PER_S


class Transfer(Enum):
    """The client's task that the server waits for."""

    SEND = "the client must send the rest of what it has begun"
    READ = "the client must read what the transport holds"
    OPEN_WINDOW = "the client must open a window of HTTP/2; only its calls end if it does not"


class Client(Protocol):
    """The owner of a flow: a connection, or the reader of a body."""

    @property
    def unread(self) -> Iterable[InferenceResponse]:
        """Responses that must stay in memory until the client has read them.

        Released ones among them have no outputs.
        """

    @property
    def arriving(self) -> Iterable[ClientAdmission]:
        """The admissions of requests whose tensors are arriving in models' memory."""

    def drop(self) -> None:
        """Disconnect the client, and release the memory of requests that are arriving: it is too slow."""


class ClientBytes:
    """The bytes of one client.

    Attributes:
        client: the owner; None once it has gone.
        pace: the client's transfer rate.
        received_bytes: all that has come from the client. The owner counts them.
        held_bytes: memory that the client takes, apart from bytes that are written.
        unread_bytes: bytes that are written, and that the client has not read.
        counted_bytes: those that the account contains.
    """

    def __init__(self, client: Client, memory: ClientMemory) -> None:
        self.client: Client | None = client
        self.pace = Pace()
        self._memory = memory
        self.received_bytes = self._received_then = self._taken_then = 0
        self.held_bytes = self.unread_bytes = self.counted_bytes = 0

    # Memory

    def hold(self, nbytes: int) -> None:
        """Set :attr:`held_bytes`.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached. Then nothing changes; fewer bytes never raise.
        """
        if nbytes == self.held_bytes:
            return
        before, self.held_bytes = self.held_bytes, nbytes
        if not self._memory.count(self) and nbytes > before:
            self.held_bytes = before
            raise self._memory.error(nbytes - before)

    def leave_unread(self, nbytes: int) -> None:
        """Set :attr:`unread_bytes`.

        If the server's limit is reached, the client is disconnected, but not before this returns.
        """
        self.unread_bytes = nbytes
        if not self._memory.count(self):
            asyncio.get_running_loop().call_soon(self.drop)

    def begin_sending(self) -> None:
        """A request begins to arrive in a model's memory: the client is disconnected if it is slow and others need it."""
        self._memory.sending.add(self)

    def end_sending(self) -> None:
        """No request arrives in models' memory any more."""
        self._memory.sending.discard(self)

    def drop_other_sender(self, admission: ClientAdmission) -> bool:
        """Disconnect the slowest client whose request holds memory that a request of this one needs.

        False if no slow one does.
        """
        return self._memory.drop_sender(lambda each: each.shares_memory_with(admission), self)

    def drop(self) -> None:
        """Disconnect a slow client, because others need the memory."""
        if self.client is not None:
            log.info("Closing the connection of a slow client: others need the memory that is buffered for it.")
            self.client.drop()

    def close(self) -> None:
        """The client has gone, and its requests and responses are released."""
        self.client = None  # it refers to this object
        self.held_bytes = self.unread_bytes = 0
        self._memory.forget(self)

    # Rate

    def measure(self, seconds: int, transfer: Transfer | None, taken_bytes: int) -> None:
        """Called about once a second, with the time since the last call. A client that has stalled is disconnected.

        The server waits for the transfer, None for nothing; ``taken_bytes`` is all that the client has read so far.
        """
        received, self._received_then = self.received_bytes - self._received_then, self.received_bytes
        taken, self._taken_then = max(0, taken_bytes - self._taken_then), taken_bytes
        if transfer is None:
            self.pace.rest()
            return
        self.pace.advance(max(1, seconds), received if transfer is Transfer.SEND else taken)
        if self.pace.has_stalled and transfer is not Transfer.OPEN_WINDOW:
            log.info(
                "Closing a connection whose client sends or reads less than %d bytes a second.", LOWEST_RATE_BYTES_PER_S
            )
            assert self.client is not None
            self.client.drop()


class ClientMemory:
    """The account of memory that the clients of all ports take."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0  # the current total
        self.sending: set[ClientBytes] = set()  # the flows that may hold memory of models while their requests arrive
        self.counted: set[ClientBytes] = set()  # the flows of which bytes are counted
        self._leaving: list[tuple[set[ClientBytes], Callable[[], None]]] = []

    def count(self, flow: ClientBytes) -> bool:
        """Count what a flow takes now, and disconnect slow clients if it is too much.

        False if it still is: nothing changes.
        """
        total = flow.held_bytes + flow.unread_bytes
        wanted = total if total > UNCOUNTED_BYTES and flow.client is not None else 0
        more = wanted - flow.counted_bytes
        if more > 0:
            for slow in _slow(self.counted - {flow}) if self.used_bytes + more > self.limit_bytes else ():
                self.drop(slow)
                if self.used_bytes + more <= self.limit_bytes:
                    break
            if self.used_bytes + more > self.limit_bytes:
                return False
        self._set(flow, wanted)
        return True

    def forget(self, flow: ClientBytes) -> None:
        self._set(flow, 0)
        self.sending.discard(flow)
        for entry in tuple(self._leaving):
            flows, then = entry
            flows.discard(flow)
            if not flows:
                self._leaving.remove(entry)
                then()

    def error(self, nbytes: int) -> InferenceError:
        """The error for a client whose bytes cannot be buffered."""
        return InferenceError(
            f"the server is overloaded: it holds {self.used_bytes} bytes of incomplete bodies and unread responses, "
            f"and {nbytes} more would exceed its limit of {self.limit_bytes} (--http-memory-limit). "
            "Try again later",
            ErrorCode.UNAVAILABLE,
        )

    def drop_readers(self, is_part: Callable[[Buffer], bool], nbytes: int, then: Callable[[], None]) -> bool:
        """Memory of a model's process is short: disconnect slow clients whose unread responses lie there.

        ``is_part`` says it of a tensor. ``then`` is called once the responses are released; False if there is no such
        client.
        """
        leaving: set[ClientBytes] = set()
        for flow in _slow(self.counted):
            assert flow.client is not None
            held_bytes = _held_bytes(flow.client.unread, is_part)
            if held_bytes and nbytes > 0:
                nbytes -= held_bytes
                leaving.add(flow)
        if leaving:
            self._leaving.append((set(leaving), then))
        for flow in leaving:
            self.drop(flow)
        return bool(leaving)

    def drop_sender(self, shares: Callable[[ClientAdmission], bool], wants: ClientBytes | None = None) -> bool:
        """Disconnect the slowest client, but the one that wants memory, whose request holds memory that ``shares`` accepts.

        False if no slow one does.
        """
        for flow in _slow(flow for flow in self.sending if flow is not wants):
            assert flow.client is not None
            if any(each.holds_memory and shares(each) for each in flow.client.arriving):
                self.drop(flow)
                return True
        return False

    def drop(self, flow: ClientBytes) -> None:
        """Disconnect a slow client."""
        self._set(flow, 0)
        self.sending.discard(flow)
        flow.drop()

    def _set(self, flow: ClientBytes, nbytes: int) -> None:
        self.used_bytes += nbytes - flow.counted_bytes
        flow.counted_bytes = nbytes
        if nbytes:
            self.counted.add(flow)
        else:
            self.counted.discard(flow)


def _slow(flows: Iterable[ClientBytes]) -> list[ClientBytes]:
    """Those of slow clients, the slowest first."""
    return sorted([flow for flow in flows if flow.pace.is_slow], key=lambda flow: flow.pace.rate_bytes_per_s)


def _held_bytes(responses: Iterable[InferenceResponse], is_part: Callable[[Buffer], bool]) -> int:
    return sum(
        memoryview(output.data).nbytes for response in responses for output in response.outputs if is_part(output.data)
    )


def unsent_bytes(transport: Any) -> int:
    """Bytes that the client has not received, in the transport and in the kernel; 0 for a connection that closes."""
    if transport.is_closing():
        return 0
    descriptor: int = transport.get_extra_info("socket").fileno()
    return int(transport.get_write_buffer_size()) + kernel_unsent_bytes(descriptor)


def kernel_unsent_bytes(descriptor: int) -> int:
    """Bytes in a socket's send buffer that its peer has not received; 0 if unknown."""
    try:
        (count,) = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_INT.size)))
    except OSError:
        return 0
    return int(count)
