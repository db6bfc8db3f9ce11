"""Bounds on what a peer can make a server do without making progress (RFC 9113 section 10.5), and how often it may ping.

Work is counted against budgets. Progress gives back, and so does time if the user says how much has passed.
"""

from math import inf

from pybackend_http2.errors import ErrorCode, RemoteProtocolError
from pybackend_http2.settings import Config, PingRules

_FRAMES_PER_REQUEST = 16
"""Unproductive frames that a finished request gives back: clients ping and update windows as they read answers."""


class FloodGuard:
    """The budgets of one connection."""

    __slots__ = ("_config", "_frames", "_resets", "spent", "unsent_replies")

    def __init__(self, config: Config) -> None:
        self._config = config
        self._frames = 0.0
        self._resets = 0.0
        self.spent = False  # anything was spent; while False, progress need not be reported
        self.unsent_replies = 0  # small answers that were made since the output was last taken

    def count_frame(self, what: str) -> None:
        """Count a frame that moves no request forward; raises if there were too many."""
        self.spent = True
        self._frames += 1
        if self._frames > self._config.max_unproductive_frames:
            raise _flood(
                f"more than {self._config.max_unproductive_frames} frames without progress, the last was {what}"
            )

    def count_reset(self) -> None:
        """Count a stream that ended before its time; raises if there were too many."""
        self.spent = True
        self._resets += 1
        if self._resets > self._config.max_resets:
            raise _flood(f"more than {self._config.max_resets} streams were reset")

    def count_reply(self) -> None:
        """Count a small answer that waits for the peer to read; raises if there were too many."""
        self.unsent_replies += 1
        if self.unsent_replies > self._config.max_unsent_replies:
            raise _flood(f"more than {self._config.max_unsent_replies} replies wait because the peer does not read")

    def request_finished(self) -> None:
        """Give back for a request that was answered to its end."""
        self._give_back(_FRAMES_PER_REQUEST, 1)

    def data_moved(self, frames: int) -> None:
        """Give back for frames with data, received or sent."""
        left = self._frames - frames
        self._frames = left if left > 0 else 0.0
        self.spent = bool(self._frames or self._resets)

    def time_passed(self, seconds: float) -> None:
        self._give_back(
            seconds * self._config.forgiven_frames_per_second, seconds * self._config.forgiven_resets_per_second
        )

    def _give_back(self, frames: float, resets: float) -> None:
        self._frames = max(0.0, self._frames - frames)
        self._resets = max(0.0, self._resets - resets)
        self.spent = bool(self._frames or self._resets)


def _flood(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "10.5", message)


class TooManyPingsError(RemoteProtocolError):
    """A client pings too often; clients of gRPC know the GOAWAY frame by its text, and ping less from then on."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.ENHANCE_YOUR_CALM, "6.7", "the client sends PING frames too often")
        self.debug = b"too_many_pings"


class PingJudge:
    """Judges the PINGs of one connection, by the rules that gRPC's servers follow.

    A client that pings between answers is on a busy connection, and every piece of an answer clears its record.
    """

    __slots__ = ("_mark", "_received_s", "_rules", "_strikes")

    def __init__(self, rules: PingRules) -> None:
        self._rules = rules
        self._strikes = 0
        self._received_s = -inf
        self._mark: object = None

    def received(self, mark: object, *, is_idle: bool) -> None:
        """Judge a PING; raises if the client has pinged too early more often than it may.

        The mark differs from that of the previous PING if something was answered in between.
        """
        rules, now_s = self._rules, self._rules.clock()
        if mark != self._mark:
            self._mark, self._strikes, self._received_s = mark, 0, -inf
        waited_s, self._received_s = now_s - self._received_s, now_s
        if waited_s < (rules.idle_interval_s if is_idle else rules.interval_s):
            self._strikes += 1
            if self._strikes > rules.max_strikes:
                raise TooManyPingsError
