"""Responses sent through a response sender: from any thread, while ``execute`` runs or after it has returned."""

from functools import partial
from typing import Any, Dict, Optional, Tuple

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_sender import InferenceResponseSender, ResponseStream
from pybackend_stub.channel import HostChannel, HostGone
from pybackend_stub.receiver import Receiver, Waiter
from pybackend_stub.results import ResultWriter
from pybackend_stub.tensor_io import OutputTail
from pybackend_wire.messages import STREAM_WINDOW, RequestResult
from pybackend_wire.stub_messages import Respond

Key = Tuple[int, int]
"""Identifies a request for host and stub: its execution's number and its index in that execution."""

MOST_CANCELLED = 65_536
"""Most cancelled requests to remember. Without a bound, requests answered while being cancelled would stay for ever."""


class Responder:
    """Makes response senders, and tracks which requests are cancelled, and how far each stream may run ahead of the host."""

    def __init__(self, channel: HostChannel, receiver: Receiver, results: ResultWriter, decoupled: bool) -> None:
        self._channel = channel
        self._receiver = receiver
        self._results = results
        self._decoupled = decoupled
        self._cancelled: Dict[Key, None] = {}
        self._sent: Dict[Key, int] = {}
        self._allowed: Dict[Key, int] = {}
        self._waiting: Dict[Key, Waiter] = {}

    def sender(self, request: InferenceRequest) -> InferenceResponseSender:
        """Return the sender of a request that the host passed to ``execute``."""
        key: Key = request._key
        names = request._requested_output_names

        def offer(response: InferenceResponse) -> bool:
            self._receiver.poll()
            if not self._may_send(key):
                return False
            self._say(key, names, response, False)
            return True

        return InferenceResponseSender._create(
            ResponseStream(partial(self._transmit, key, names), lambda: self.is_cancelled(key), self._decoupled, offer)
        )

    def _transmit(self, key: Key, names: Any, response: "Optional[InferenceResponse]", final: bool) -> None:
        if not final:
            # The final response never waits: it is the last one, and the garbage collector may be sending it, in a
            # thread that holds any lock.
            self._receiver.poll()
            while not self._may_send(key):
                self._waiting[key] = waiter = Waiter()
                if not self._may_send(key):  # otherwise the host's message came after the first check
                    self._receiver.wait(waiter)
        self._say(key, names, response, final)

    def _may_send(self, key: Key) -> bool:
        return self._sent.get(key, 0) < self._allowed.get(key, STREAM_WINDOW) or key in self._cancelled

    def _say(self, key: Key, names: Any, response: "Optional[InferenceResponse]", final: bool) -> None:
        tail = OutputTail()
        result = None if response is None else RequestResult._make(self._results.response(response, names, tail))
        if final:
            self._sent.pop(key, None)
        else:
            self._sent[key] = self._sent.get(key, 0) + 1
        try:
            self._channel.say(Respond(*key, final, result), tail.take())
        except HostGone:
            raise TritonModelException("An error occurred while sending a response. The server is gone.") from None

    def is_cancelled(self, key: Key) -> bool:
        """Whether the client no longer waits for a request's responses."""
        if key not in self._cancelled:
            self._receiver.poll()
        return key in self._cancelled

    def on_cancel(self, key: Key) -> None:
        """Note the host's message that the client no longer waits."""
        if len(self._cancelled) >= MOST_CANCELLED:
            del self._cancelled[next(iter(self._cancelled))]
        self._cancelled[key] = None
        self._look_again(key)

    def on_flow(self, key: Key, allowed: "Optional[int]") -> None:
        """Note how many responses of a request the host accepts; see :class:`~pybackend_wire.host_messages.Flow`."""
        if allowed is None:
            self._allowed.pop(key, None)
        else:
            self._allowed[key] = allowed
        self._look_again(key)

    def _look_again(self, key: Key) -> None:
        waiter = self._waiting.pop(key, None)
        if waiter is not None:
            self._receiver.finish(waiter)
