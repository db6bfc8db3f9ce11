"""The responses to a request that a model makes with ``decoupled=True``."""

import threading
from typing import Callable, List, Optional

from pybackend_sdk.response import InferenceResponse


class ResponseIterator:
    """Iterates over responses as they arrive, and can repeat once all have; made by ``exec`` only."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_cancel", "_finished", "_lock", "_next", "_receive", "_responses")

    _receive: "Callable[[], Optional[InferenceResponse]]"
    _cancel: "Callable[[], None]"
    _responses: List[InferenceResponse]
    _next: int
    _finished: bool
    _lock: threading.Lock

    def __init__(self) -> None:
        raise TypeError("ResponseIterator: No constructor defined! Use request.exec(decoupled=True).")

    @classmethod
    def _create(
        cls, receive: "Callable[[], Optional[InferenceResponse]]", cancel: "Callable[[], None]"
    ) -> "ResponseIterator":
        """Make the iterator of a running request.

        Args:
            receive: waits for the next response; None after the last.
            cancel: asks the server to stop the request.
        """
        iterator = cls.__new__(cls)
        iterator._receive = receive
        iterator._cancel = cancel
        iterator._lock = threading.Lock()
        iterator._responses = []
        iterator._next = 0
        iterator._finished = False
        return iterator

    def __iter__(self) -> "ResponseIterator":
        """This iterator: it starts again once all responses were read, and otherwise continues."""
        if self._finished and self._next == len(self._responses):
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        """Wait for the next response. Threads that share the iterator share its responses: each goes to one thread."""
        with self._lock:
            if self._next == len(self._responses) and not self._finished:
                response = self._receive()
                if response is None:
                    self._finished = True
                else:
                    self._responses.append(response)
            if self._next == len(self._responses):
                raise StopIteration("Iteration is done for the responses.")
            self._next += 1
            return self._responses[self._next - 1]

    def cancel(self) -> None:
        """Ask the server to stop the request; has no effect once all its responses have arrived."""
        if not self._finished:
            self._cancel()
