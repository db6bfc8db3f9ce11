"""Two processes of one test that ask each other: the test, and a model in its own environment.

Messages are pickled, because both processes run the test's own code; they hold plain Python objects only, so that
versions of Python and numpy may differ.
"""

import pickle
import queue
import socket
import struct
import threading
from typing import Any, Callable, Dict, Mapping, Optional

from pybackend_sdk.testing.crossing import error_from_plain, plain_error

_LENGTH = struct.Struct("<Q")
_PROTOCOL = 4  # known to every CPython that models may have
_CHUNK_BYTES = 1 << 20

Handler = Callable[..., Any]
Run = Callable[[str, Callable[[], None]], None]
"""Runs a handler, whose name is the first argument, in some thread."""


class PeerGone(Exception):
    """The other process has ended."""


class NoReply(Exception):
    """The other process did not reply in time."""


class Peer:
    """One end of the conversation.

    Args:
        sock: a connected stream socket.
        handlers: functions that the other process may call, by name.
        run: runs the handlers of questions. A separate thread handles statements, in order.
    """

    def __init__(self, sock: socket.socket, handlers: Mapping[str, Handler], run: Run) -> None:
        self._socket = sock
        self._handlers = handlers
        self._run = run
        self._lock = threading.Lock()
        self._replies: Dict[int, queue.SimpleQueue[Any]] = {}
        self._asked = 0
        self._gone = False

    def start(self, on_end: Callable[[], None]) -> None:
        """Begin to read; ``on_end`` is called once the other process has ended."""

        def work() -> None:
            self._read()
            self._end()
            on_end()

        threading.Thread(target=work, name="pybackend peer", daemon=True).start()

    def ask(self, name: str, *arguments: Any, timeout_s: Optional[float] = None) -> Any:
        """Ask the other process and wait for its reply.

        Raises:
            PeerGone: it has ended.
            NoReply: it did not reply within ``timeout_s``.
            Exception: the one that the other process raised.
        """
        reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if self._gone:
                raise PeerGone
            self._asked += 1
            number = self._asked
            self._replies[number] = reply
        self._send(("ask", number, name, arguments))
        try:
            kind, value = reply.get(timeout=timeout_s)
        except queue.Empty:
            raise NoReply from None
        finally:
            with self._lock:
                self._replies.pop(number, None)
        if kind == "gone":
            raise PeerGone
        if kind == "error":
            raise error_from_plain(value)
        return value

    def tell(self, name: str, *arguments: Any) -> None:
        """Send something that needs no reply. Nothing happens if the other process has ended."""
        self._send(("tell", 0, name, arguments))

    def close(self) -> None:
        """End the conversation."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other process has done it
            pass

    def _send(self, message: Any) -> None:
        data = pickle.dumps(message, _PROTOCOL)
        try:
            with self._lock:
                self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:  # the reader notices the end too, and tells everyone who waits
            pass

    def _read(self) -> None:
        while True:
            header = self._receive(_LENGTH.size)
            data = None if header is None else self._receive(_LENGTH.unpack(header)[0])
            if data is None:
                return
            self._handle(*pickle.loads(data))  # noqa: S301  from the test's own process

    def _handle(self, kind: str, number: int, name: str, arguments: Any) -> None:
        if kind == "tell":
            self._handlers[name](*arguments)
        elif kind == "ask":
            self._run(name, lambda: self._reply(number, self._handlers[name], arguments))
        else:
            with self._lock:
                reply = self._replies.get(number)
            if reply is not None:
                reply.put((kind, arguments))

    def _reply(self, number: int, handler: Handler, arguments: Any) -> None:
        try:
            kind, value = "value", handler(*arguments)
        except BaseException as error:  # noqa: BLE001  the other process raises it
            kind, value = "error", plain_error(error)
        self._send((kind, number, "", value))

    def _receive(self, count: int) -> Optional[bytes]:
        """Exactly that many bytes; None at the end of the stream."""
        chunks = []
        while count:
            try:
                chunk = self._socket.recv(min(count, _CHUNK_BYTES))
            except OSError:
                return None
            if not chunk:
                return None
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)

    def _end(self) -> None:
        with self._lock:
            self._gone = True
            waiting = list(self._replies.values())
        for reply in waiting:
            reply.put(("gone", None))
        self._socket.close()


def in_a_thread(name: str, handle: Callable[[], None]) -> None:
    """Run a handler in a new thread."""
    threading.Thread(target=handle, name=f"pybackend {name}", daemon=True).start()
