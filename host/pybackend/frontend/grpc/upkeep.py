"""The upkeep of a connection, once a second: whatever has stalled, is unused, silent or too old comes to its end."""

import logging
import random
from math import inf

from pybackend.frontend.flow import IDLE_SECONDS, STALLED_SECONDS, UNCOUNTED_BYTES, Transfer, unsent_bytes
from pybackend.frontend.grpc.call import open_calls, open_messages
from pybackend.frontend.grpc.errors import CallError
from pybackend.frontend.grpc.peer import Peer
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend_http2 import ErrorCode

log = logging.getLogger(__name__)

_KEEPALIVE = b"are you?"

_AGE_SPREAD = 0.1
"""Ages differ by this fraction, so that connections that were made together do not end together."""

_LAST_CALLS_S = 20
"""A client that is asked to leave may begin calls for so long, if it does not confirm that it has understood."""

_TOO_OLD = CallError(
    GrpcStatus.UNAVAILABLE,
    "the connection has reached its greatest age (--grpc-max-connection-age), and this call has outlasted the time after it",
)


class Upkeep:
    """The upkeep of one connection. Times are seconds of the server's coarse clock."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._settings = settings = peer.frontend.settings.keepalive
        self._looked_at = now = peer.frontend.seconds
        self._asked_at: int | None = None
        self._pings = 0
        self._answered_mark: object = None
        spread = random.uniform(1 - _AGE_SPREAD, 1 + _AGE_SPREAD)  # noqa: S311  no secret
        self._old_at = now + settings.max_age_s * spread

    def check(self, seconds: int) -> None:
        """Called about once a second: close a connection whose transfer is too slow, and reset calls whose client does not read."""
        peer, http2 = self._peer, self._peer.http2
        now = peer.frontend.seconds
        http2.time_passed(seconds)
        if now >= self._old_at:
            self._check_age(now)
        transfer = self._current_transfer()
        taken = http2.sent_bytes if transfer is None else http2.sent_bytes - unsent_bytes(peer.transport)
        peer.flow.measure(seconds, transfer, taken)
        if now - self._looked_at >= STALLED_SECONDS:
            self._looked_at = now
            self._end_stalled_calls()
        if transfer is None:
            self._check_idle(now)

    def _current_transfer(self) -> Transfer | None:
        """The client's task that the connection waits for; of two, the one for which more memory is held."""
        peer, http2 = self._peer, self._peer.http2
        held, unread = peer.flow.held_bytes, http2.waiting_bytes
        if peer.is_full:
            return Transfer.READ
        if peer.unhandled_bytes:  # the client waits for the server
            return None
        if unread > max(held, UNCOUNTED_BYTES) and not peer.arriving_count:
            return Transfer.OPEN_WINDOW
        if http2.is_amid_frame or (
            (held or peer.arriving_count) and any(messages.is_incomplete for messages in open_messages(http2))
        ):
            return Transfer.SEND
        return Transfer.OPEN_WINDOW if unread else None

    def _end_stalled_calls(self) -> None:
        http2 = self._peer.http2
        for stream in http2.stalled_streams():
            log.info("Resetting a call whose client has read nothing of its answer for %d seconds.", STALLED_SECONDS)
            receiver = stream.receiver
            stream.reset(ErrorCode.CANCEL)
            receiver.on_reset(ErrorCode.CANCEL, None)
        for call in open_calls(http2):
            call.check_progress()
        self._peer.flush()

    def _check_idle(self, now: int) -> None:
        """Close an unused connection.

        Ask a silent client whether it is there; one that does not answer has gone without a word.

        A client with open calls is asked in any case when it has been silent for as long as an unused connection may
        be.
        """
        peer, settings, http2 = self._peer, self._settings, self._peer.http2
        if self._asked_at is not None:
            if peer.active_at < self._asked_at:
                if now - self._asked_at >= settings.timeout_s:
                    log.info("Closing a connection whose client does not answer.")
                    peer.transport.abort()
                return
            self._asked_at = None
        silent_s = now - peer.active_at
        if not http2.streams and silent_s >= IDLE_SECONDS:
            if peer.is_leaving:  # the client was asked to leave, and does not confirm it
                http2.finish_shutdown()
            self.leave()
            return
        if http2.answered_mark != self._answered_mark:
            self._answered_mark, self._pings = http2.answered_mark, 0
        may_ping = not settings.max_pings_without_data or self._pings < settings.max_pings_without_data
        patience_s = settings.time_s if may_ping and (http2.streams or settings.permit_without_calls) else inf
        if silent_s >= (min(patience_s, IDLE_SECONDS) if http2.streams else patience_s):
            self._asked_at = now
            self._pings += 1
            http2.ping(_KEEPALIVE)
            peer.flush()

    def _check_age(self, now: int) -> None:
        """Bring an old connection to its end: the client is asked to begin no calls, then may not, and then the others end."""
        peer, old_s = self._peer, now - self._old_at
        is_over = peer.is_leaving and old_s >= self._settings.max_age_grace_s
        if is_over:
            for call in open_calls(peer.http2):
                call.fail(_TOO_OLD)
        elif not peer.is_leaving:
            peer.is_leaving = True
            peer.http2.begin_shutdown()
        elif old_s >= _LAST_CALLS_S:
            peer.http2.finish_shutdown()
        peer.flush()
        if is_over:
            peer.transport.close()

    def leave(self) -> None:
        """Ask the client to begin no further calls; the connection closes after the last one."""
        self._peer.is_leaving = True
        self._peer.http2.begin_shutdown()
        self._peer.flush()

    def shut_down(self) -> None:
        """End the calls that wait for their clients; the connection closes after the last one."""
        self.leave()
        peer = self._peer
        for call in open_calls(peer.http2):
            call.shut_down()
        peer.flush()
