"""A call that ends by its head."""

from __future__ import annotations

from pybackend.frontend.grpc.call import Call
from pybackend.frontend.grpc.call_connection import CallConnection
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.http2 import Stream


class RefusedCall(Call):
    """A call whose head says that it cannot be served: it is over before its first message."""

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead) -> None:
        super().__init__(connection, stream, head)
        assert head.refusal is not None
        connection.frontend.malformed(head.refusal.message, connection.address, head.refusal.reason)
        self._end(head.refusal.status)
        stream.send_headers(head.refusal.answer, end=True)
        self._stop_receiving()
