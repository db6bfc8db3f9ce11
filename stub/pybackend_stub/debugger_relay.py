"""The port for editors: passes their messages to debugpy in the same process, and disconnects for editors that vanish.

If an editor disappears without a word, debugpy keeps the model stopped for ever. Here any end of a connection detaches.
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
"""Time for debugpy to read the goodbye; it does not close the connection by itself."""

_START_S, _POLL_S = 10.0, 0.02
"""debugpy opens its own port in a thread, a moment after it reports that it listens."""

_CHUNK_BYTES = 64 * 1024


class DebuggerRelay:
    """Listens for editors and admits one at a time.

    Args:
        port: port for editors.

    Attributes:
        inner_port: port for debugpy.

    Raises:
        OSError: the port is not available.
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
        """Admit editors from now on; debugpy listens already or soon will."""
        self._listener.listen()
        os.register_at_fork(after_in_child=self._listener.close)
        ServiceThread("pybackend-debugger", self._serve).start()

    def _serve(self) -> None:
        while True:
            editor, _ = self._listener.accept()
            with editor, suppress(OSError), self._connect() as debugger:  # including time-outs
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
    """Pass bytes both ways until either side ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(editor, selectors.EVENT_READ, debugger)
        selector.register(debugger, selectors.EVENT_READ, editor)
        while True:
            for key, _ in selector.select():
                data = key.fileobj.recv(_CHUNK_BYTES)  # type: ignore[union-attr]  # registered above
                if not data:
                    return
                key.data.sendall(data)
