"""The state that all connections of a port for HTTP share."""

from __future__ import annotations

import asyncio

from pybackend.engine.answers import Answers
from pybackend.frontend.http.cors import Cors
from pybackend.frontend.http.guard import HttpGuard
from pybackend.frontend.kept_bytes import KeptBytes
from pybackend.frontend.slices import Slices
from pybackend.frontend.watch import Watch


class ConnectionClock:
    """State shared by all connections of a port.

    Attributes:
        seconds: incremented once a second by the server; reading it costs nothing, unlike a timer per connection.
        kept: the account of bytes buffered for clients.
        slices: the scheduler of long work.
        closing: True once the server stops: connections close after the current response.
        ended: set when a connection has ended.
        watch: follows requests for the log.
        answers: counts the answers by status.
        guard: refuses requests by their heads; None if all may pass.
        cors: the rule for web pages of other origins; None if there is none.
    """

    def __init__(
        self, kept: KeptBytes, watch: Watch | None = None, guard: HttpGuard | None = None, cors: Cors | None = None
    ) -> None:
        self.kept = kept
        self.watch = Watch() if watch is None else watch
        self.answers = Answers("200")
        self.guard = guard
        self.cors = cors
        self.slices = Slices()
        self.seconds = 0
        self.closing = False
        self.ended = asyncio.Event()
