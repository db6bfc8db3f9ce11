"""The part that the user of the package plays for a whole connection; ``StreamReceiver`` is the one for a stream."""

from __future__ import annotations

from typing import Protocol

from pybackend.http2.request_head import RequestHead
from pybackend.http2.stream import Stream, StreamReceiver


class ConnectionReceiver(Protocol):
    """Hears about one connection."""

    def on_request(self, stream: Stream, head: RequestHead, ended: bool, /) -> StreamReceiver:
        """A request begins.

        Returns:
            The receiver of all further events of this stream.
        """

    def on_whole_request(
        self, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int, /
    ) -> StreamReceiver | None:
        """A request with a small body has arrived in one piece, and its head has ``takes_whole``.

        Args:
            stop: where it ends. Its bytes have been given back.

        Returns:
            The receiver of all further events of this stream. None if the request must be heard of by
            :meth:`on_request` and the methods of a stream's receiver; then nothing was sent on the stream.
        """

    def on_ping_acknowledged(self, payload: bytes, /) -> None:
        """The peer has answered ``Connection.ping``."""

    def on_goaway(self, code: int, debug: bytes, /) -> None:
        """The peer is about to leave: no new requests follow. Open streams go on."""
