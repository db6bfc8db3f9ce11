"""Where editors attach: passes their messages to debugpy in the same process, and says goodbye for those that do not.

debugpy keeps a model stopped whose editor is gone without a word, for ever. Here whatever ends a connection detaches.
"""

import os
import selectors
import socket
import time
from contextlib import suppress

from pybackend_stub.service_thread import ServiceThread

ADDRESS = "127.0.0.1"

_DISCONNECT = b'{"seq": 1, "type": "request", "command": "disconnect", "arguments": {"terminateDebuggee": false}}'
_GOODBYE = b"Content-Length: %d\r\n\r\n%s" % (len(_DISCONNECT), _DISCONNECT)
_GOODBYE_S = 0.2
"""How long debugpy gets to read that; it does not close the connection by itself."""

_START_S, _POLL_S = 10.0, 0.02
"""debugpy opens its own port in a thread, a moment after it says that it listens."""

_CHUNK_BYTES = 64 * 1024


class DebuggerRelay:
    """Listens for editors and lets in one after the other.

    Args:
        port: where editors attach.

    Attributes:
        inner_port: where debugpy is to listen.

    Raises:
        OSError: the port cannot be had.
    """

    def __init__(self, port: int) -> None:
        self._listener = socket.socket()
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((ADDRESS, port))
            with socket.socket() as probe:
                probe.bind((ADDRESS, 0))
                self.inner_port: int = probe.getsockname()[1]
        except BaseException:
            self._listener.close()
            raise

    def start(self) -> None:
        """Let editors in from now on; debugpy listens, or is about to."""
        self._listener.listen()
        os.register_at_fork(after_in_child=self._listener.close)
        ServiceThread("pybackend-debugger", self._serve).start()

    def _serve(self) -> None:
        while True:
            editor, _ = self._listener.accept()
            with editor, suppress(OSError), self._connect() as debugger:  # a time-out among them
                with suppress(OSError):
                    _pass_on(editor, debugger)
                debugger.sendall(_GOODBYE)
                debugger.shutdown(socket.SHUT_WR)
                debugger.settimeout(_GOODBYE_S)
                while debugger.recv(_CHUNK_BYTES):
                    pass

    def _connect(self) -> socket.socket:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                return socket.create_connection((ADDRESS, self.inner_port))
            except ConnectionRefusedError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_POLL_S)


def _pass_on(editor: socket.socket, debugger: socket.socket) -> None:
    """Pass bytes both ways until either side has no more."""
    with selectors.DefaultSelector() as selector:
        selector.register(editor, selectors.EVENT_READ, debugger)
        selector.register(debugger, selectors.EVENT_READ, editor)
        while True:
            for key, _ in selector.select():
                data = key.fileobj.recv(_CHUNK_BYTES)  # type: ignore[union-attr]  # registered above
                if not data:
                    return
                key.data.sendall(data)
