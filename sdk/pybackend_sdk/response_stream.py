"""The responses to one request: what a model may send, and when. The stub and the test harness apply the same rules.

On a request's path this module sits between a model's response sender and the way back to the server.
"""

import threading
from contextlib import suppress
from typing import Callable, Optional

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.response import InferenceResponse

DROPPED = (
    "The model dropped this request's response sender without having sent the final flag: the last call must be "
    "send(..., flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)."
)
"""Error for the client of a request whose response sender is gone."""

Transmit = Callable[[Optional[InferenceResponse], bool], None]
Offer = Callable[[InferenceResponse], bool]


class ResponseStream:
    """The responses of one request. The final response closes it; if the model drops it unclosed, the client is told.

    Args:
        transmit: sends a response or None, with or without the final flag.
        is_cancelled: whether the client no longer waits.
        decoupled: whether any number of responses may be sent, rather than exactly one.
        offer: sends a response that is not the last one, or returns False if it would have to wait; None if sending never
            waits.
    """

    __slots__ = ("__weakref__", "_answered", "_decoupled", "_lock", "_offer", "_transmit", "closed", "is_cancelled")

    def __init__(
        self,
        transmit: Transmit,
        is_cancelled: "Callable[[], bool]",
        decoupled: bool,
        offer: "Optional[Offer]" = None,
    ) -> None:
        self._transmit = transmit
        self._offer = offer
        self._decoupled = decoupled
        self._answered = False
        self._lock = threading.Lock()
        self.is_cancelled = is_cancelled
        self.closed = False
        """True once no more responses can be sent."""

    def send(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Send a response, the final flag, or both. Concurrent calls from several threads run one after another.

        Raises:
            TritonModelException: the stream is closed, or a model that answers once would answer twice or not at all.
        """
        with self._lock:
            if not self._decoupled:
                self._check_single(response)
            if self.closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if self._decoupled:
                # Closed only after transmission: if that fails, the client still gets a final response.
                self._transmit(response, final)
            elif response is not None:
                # The only response: the client need not wait for the flag.
                self._transmit(response, True)
                self._answered = True
            self.closed = final

    def offer(self, response: InferenceResponse) -> bool:
        """Send a response that is not the last one of a decoupled model, unless the receiver makes it wait.

        Returns:
            Whether the response was sent.

        Raises:
            TritonModelException: the stream is closed.
        """
        with self._lock:
            if self.closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if self._offer is not None:
                return self._offer(response)
            self._transmit(response, False)
            return True

    def _check_single(self, response: Optional[InferenceResponse]) -> None:
        if response is None:
            if not self._answered and not self.closed:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
        elif self._answered:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )

    def settle(self) -> bool:
        """Close for a response from elsewhere, e.g. ``execute``'s return value; False if one was sent before."""
        with self._lock:
            if self._answered or self.closed:
                return False
            self._answered = self.closed = True
            return True

    def fail(self, error: TritonError) -> None:
        """Send an error as the final response, unless the request was answered."""
        with self._lock:
            self._fail(error)

    def _fail(self, error: TritonError) -> None:
        if self.closed:
            return
        self.closed = True
        if not self._answered:
            self._transmit(InferenceResponse(error=error), True)

    def __del__(self) -> None:
        # The lock is free: its holder would refer to this object. While the interpreter exits nothing can be sent.
        with suppress(Exception):
            self._fail(TritonError(DROPPED))
