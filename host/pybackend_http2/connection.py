"""The server's end of a connection, as its user sees it: bytes in, calls of receivers; calls of streams, bytes out."""

from collections.abc import Mapping
from typing import Final

from pybackend_http2 import frames
from pybackend_http2.core import SHUTDOWN_PING, ConnectionCore, ConnectionReceiver
from pybackend_http2.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from pybackend_http2.incoming import Incoming
from pybackend_http2.settings import Config
from pybackend_http2.stream import Stream

_DEFAULT_CONFIG: Final = Config()


class ServerConnection:
    """One connection. Not for use by several threads."""

    def __init__(self, receiver: ConnectionReceiver, config: Config = _DEFAULT_CONFIG) -> None:
        self._core = ConnectionCore(receiver, config)
        self._sender = self._core.sender
        self._incoming = Incoming(self._core)
        self.streams: Mapping[int, Stream] = self._core.streams  # streams that have not ended, by number

    # --- bytes in ---

    def receive(self, data: bytes | bytearray | memoryview, offset: int = 0) -> int:
        """Process a few frames from the client: it chooses how much work lies in one read.

        Receivers are called before this returns.

        Returns where the rest begins; the next call must go on there. Nothing of ``data`` is kept, except that payloads
        may be delivered as views of it (see ``StreamReceiver.on_data``). After the connection was closed, bytes are
        ignored. A RemoteProtocolError closes it: the client broke a rule or exceeded a bound. Write the output (it
        tells the client why), close the transport and call :meth:`connection_lost`.
        """
        try:
            return self._incoming.receive(data, offset)
        except RemoteProtocolError as error:
            self._fail(error)
            raise

    def forget_heads(self) -> None:
        """Make new ``RequestHead`` objects for further requests, so that no ``user_data`` of an earlier one is seen."""
        self._core.decoder.forget()

    @property
    def unreturned_bytes(self) -> int:
        """Received DATA that was not given back, in bytes: it still counts against the client's window."""
        core = self._core
        return core.config.connection_window_bytes - core.receive_window - core.credit

    @property
    def is_amid_frame(self) -> bool:
        """A frame or a header block has begun to arrive, and its end has not; so has the client's preface."""
        return self._incoming.is_amid_frame

    @property
    def expected_payload(self) -> tuple[Stream, int] | None:
        """The stream whose DATA frame has arrived in part, and how many bytes of its payload follow next on the wire.

        They may be read from the socket into memory of the user's choice, and :meth:`payload_stored` then takes the
        place of :meth:`receive`. ``on_data`` is called only for the end of the request, with no bytes. They must be
        given back like others.
        """
        return self._incoming.expected_payload

    def payload_stored(self, count: int) -> None:
        """The next ``count`` bytes of the :attr:`expected_payload` were received elsewhere.

        Raises as :meth:`receive` does.
        """
        try:
            self._incoming.payload_stored(count)
        except RemoteProtocolError as error:
            self._fail(error)
            raise

    # --- bytes out ---

    @property
    def has_output(self) -> bool:
        """:meth:`take_output` would return something. Look after :meth:`receive`, and after calls of streams."""
        sender = self._sender
        return bool(sender.pieces or (sender.ready and sender.window > 0))

    def take_output(self, limit_bytes: int = 256 * 1024) -> list[bytes | memoryview]:
        """Return what must be written next, in order. Small pieces are joined: the answers of a turn are one ``bytes``.

        Call it when the transport has room, and only then: what stays here is shared out fairly among the streams.
        Beyond about the limit no more data is taken from streams; everything but data is always returned.
        """
        return self._sender.take(limit_bytes)

    @property
    def answered_mark(self) -> object:
        """A value that is another one once data was sent, a stream was opened, or one has ended."""
        return self._core.answered_mark

    @property
    def waiting_bytes(self) -> int:
        """Data of all answers that waits for windows or for :meth:`take_output`."""
        return self._sender.waiting_bytes

    @property
    def sent_bytes(self) -> int:
        """Data of all answers that was handed out."""
        return self._sender.granted_window - self._sender.window

    def stalled_streams(self) -> list[Stream]:
        """Return the streams whose data has waited since the previous call of this method, with none of it sent.

        Call it once per period in which a client must read something, and reset the streams it returns: this bounds
        clients that never open a window or never read.
        """
        stalled = []
        for stream in self.streams.values():
            if not stream.waiting_bytes:
                stream.sent_when_last_checked = -1
            elif stream.sent_when_last_checked == stream.sent_bytes:
                stalled.append(stream)
            else:
                stream.sent_when_last_checked = stream.sent_bytes
        return stalled

    # --- the connection itself ---

    def ping(self, payload: bytes) -> None:
        """Send a PING with 8 bytes other than the package's own, to hear something of a silent client."""
        if len(payload) != 8 or payload == SHUTDOWN_PING:
            raise LocalProtocolError(f"a PING carries 8 bytes other than {SHUTDOWN_PING!r}, not {payload!r}")
        self._sender.pieces.append(frames.frame(frames.PING, 0, 0, payload))

    def begin_shutdown(self) -> None:
        """Ask the client to make no further requests (RFC 9113 section 6.8).

        Requests that are on their way are still accepted.

        A PING follows, and its acknowledgement proves that nothing more is on its way: then :meth:`finish_shutdown` is
        called. Call it yourself if the client takes too long.
        """
        core = self._core
        if not core.is_shutting_down and not core.is_closed:
            core.is_shutting_down = True
            self._sender.pieces.append(frames.goaway(frames.LARGEST_WINDOW_BYTES, ErrorCode.NO_ERROR))
            self._sender.pieces.append(frames.frame(frames.PING, 0, 0, SHUTDOWN_PING))

    def finish_shutdown(self) -> None:
        """Accept no further requests: say which was the last one. Open streams go on."""
        self._core.finish_shutdown()

    @property
    def takes_requests(self) -> bool:
        """The client may begin requests."""
        return not self._core.is_refusing

    @property
    def is_finished(self) -> bool:
        """Nothing is left to do: closed or shut down, no stream open, no output left."""
        core = self._core
        is_shut = core.is_closed or (core.last_stream_accepted is not None and not self.streams)
        return is_shut and not self.has_output

    def close(self, code: int = ErrorCode.NO_ERROR, debug: bytes = b"") -> None:
        """End the connection at once: nothing more is received.

        Write the output, close the transport, call :meth:`connection_lost`.
        """
        core = self._core
        if not core.is_closed:
            core.is_closed = core.is_refusing = True
            self._sender.window = 0  # data that waits stays here
            self._sender.pieces.append(frames.goaway(core.last_stream_id, code, debug))
        self._incoming.watch_order()

    def connection_lost(self) -> None:
        """The transport has gone: every open stream's ``on_reset`` is called."""
        core = self._core
        self._incoming.watch_order()
        core.is_closed = core.is_refusing = True
        # The receiver refers to the connection, and so does the traceback of the error: without a cut, they would
        # outlast it.
        error, core.error = core.error, None
        if hasattr(core, "receiver"):  # a transport may say it twice
            del core.receiver
        for stream in list(self.streams.values()):
            core.remove(stream).on_reset(error.code if error else ErrorCode.CANCEL, error)

    def time_passed(self, seconds: float) -> None:
        """Say how much time has passed since the previous call: budgets against floods recover with it."""
        self._core.guard.time_passed(seconds)

    def _fail(self, error: RemoteProtocolError) -> None:
        self._core.error = error
        self.close(error.code, error.debug)
