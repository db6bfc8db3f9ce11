"""The methods that a connection calls on the object that reads one request, or answers it."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.engine.admission import Admission
from pybackend.inference.response import InferenceResponse


class Exchange:
    """A request and its answer, as its connection sees them. The methods do nothing; subclasses replace those that they need."""

    __slots__ = ()

    has_begun = False
    """A part of the answer is written."""

    unread: Sequence[InferenceResponse] = ()
    """Responses that must stay in memory until the client has read them. Released ones among them have no outputs."""

    arriving: Sequence[Admission] = ()
    """The admission of a request whose tensors arrive in a model's memory."""

    def on_body(self, piece: bytes) -> None:
        """The next bytes of the body, without the framing of chunks."""

    def on_complete(self) -> None:
        """The request has arrived; ``HttpConnection.answered`` must follow, now or later."""

    def room(self) -> memoryview | None:
        """Memory for the next bytes of the body, if the kernel should write them there; None if not."""
        return None

    def on_stored(self, count: int) -> None:
        """So many bytes were written to :meth:`room`."""

    def on_paused(self) -> None:
        """The client reads more slowly than the server writes."""

    def on_resumed(self) -> None:
        """The client has taken everything that was written."""

    def on_lost(self) -> None:
        """The connection has ended, or is about to end: release everything. May be called twice."""

    def shut_down(self) -> None:
        """The server stops: this is the connection's last answer."""
