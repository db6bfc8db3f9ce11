"""The responses to one request: what a model may send, and when. Stub and test harness both hold senders to these rules.

On a request's path this stands between a model's response sender and the way back to the server.
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
"""What the client reads whose request nobody can answer any more."""

Transmit = Callable[[Optional[InferenceResponse], bool], None]


class ResponseStream:
    """One request's way out. It closes with the final response, and tells the client when the model drops it unclosed.

    Args:
        transmit: sends a response, or None, with or without the final flag.
        is_cancelled: whether the client no longer waits.
        decoupled: whether any number of responses may be sent, or exactly one.
    """

    __slots__ = ("__weakref__", "_answered", "_decoupled", "_lock", "_transmit", "closed", "is_cancelled")

    def __init__(self, transmit: Transmit, is_cancelled: "Callable[[], bool]", decoupled: bool) -> None:
        self._transmit = transmit
        self._decoupled = decoupled
        self._answered = False
        self._lock = threading.Lock()
        self.is_cancelled = is_cancelled
        self.closed = False
        """True once nothing more can be sent."""

    def send(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Send a response, the final flag, or both. Threads that send at once are served one after another.

        Raises:
            TritonModelException: the stream is closed, or a model that answers once would answer twice or not at all.
        """
        with self._lock:
            if not self._decoupled:
                self._check_single(response)
            if self.closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if self._decoupled:
                # Closed only once it is out: should that fail, the client still gets its final response.
                self._transmit(response, final)
            elif response is not None:
                # The only response there will be: the client need not wait for the flag.
                self._transmit(response, True)
                self._answered = True
            self.closed = final

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
        """The response comes from elsewhere, e.g. from ``execute``'s return value; False if one was sent before."""
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
        # Nobody can hold the lock: whoever does refers to this object. At the interpreter's end nothing can be sent.
        with suppress(Exception):
            self._fail(TritonError(DROPPED))
