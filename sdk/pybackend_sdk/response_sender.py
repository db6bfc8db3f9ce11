"""``InferenceResponseSender``: answers a request independently of ``execute``'s return value.

The rules for its responses.

The stub and the test harness apply the same rules: :class:`ResponseStream` sits between a model's response sender and
the way back to the server.
"""

import threading
from contextlib import suppress
from typing import Callable, Optional

from pybackend_sdk.arguments import UINT32_MAX, incompatible, integer
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

    ``transmit`` sends a response or None, with or without the final flag. ``offer`` sends a response that is not the
    last one, or returns False if it would have to wait; it is None if sending never waits. A decoupled model sends any
    number of responses, others exactly one.
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
        """Send a response, the final flag, or both. Concurrent calls from several threads run one after another."""
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

        Returns whether the response was sent.
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


TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class InferenceResponseSender:
    """Answers one request independently of ``execute``'s return value; from ``request.get_response_sender()`` only."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_stream")

    _stream: Optional[ResponseStream]

    def __init__(self) -> None:
        raise TypeError("InferenceResponseSender: No constructor defined! Use request.get_response_sender().")

    @classmethod
    def _create(cls, stream: Optional[ResponseStream]) -> "InferenceResponseSender":
        """Make the sender of a request. A request that the model built has no client, and so no stream."""
        sender = cls.__new__(cls)
        sender._stream = stream
        return sender

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both.

        Args:
            response: may be None only together with the flag.
            flags: ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` on the last call, else 0.

        Raises:
            TypeError: an argument has the wrong type.
            TritonModelException: the request's state does not allow this response, or the stream is closed.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            incompatible("send", "response", "an InferenceResponse", response)
        flags = integer("send", "flags", flags, 0, UINT32_MAX)
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._stream is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._stream.send(response, flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client no longer waits for a response."""
        return self._stream is not None and self._stream.is_cancelled()
