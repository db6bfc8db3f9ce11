"""Limits the total bytes of requests that the server has accepted and not yet answered."""

from __future__ import annotations

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest, to_sender
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse


class QueuedBytes:
    """The total bytes of all models' client requests. Calls between models are neither counted nor refused.

    It is the last stage of every model's response path.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._nbytes: dict[PendingRequest, int] = {}

    def weigh(self, request: InferenceRequest) -> int:
        """The request's size in bytes.

        Raises:
            InferenceError: UNAVAILABLE, the request would exceed the limit.
        """
        nbytes = sum(len(tensor.data) for tensor in request.inputs)  # type: ignore[arg-type,misc]  # bytes are there
        if self.used_bytes + nbytes > self.limit_bytes:
            raise InferenceError(
                f"{request.prefix}the server is overloaded: it holds {self.used_bytes} bytes of waiting and running "
                f"requests, and {nbytes} more would exceed its limit of {self.limit_bytes} (--max-queued-bytes). Try "
                "again later",
                ErrorCode.UNAVAILABLE,
            )
        return nbytes

    def add(self, pending: PendingRequest, nbytes: int) -> None:
        """Count a request of this size until it is answered."""
        self._nbytes[pending] = nbytes
        self.used_bytes += nbytes

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Pass a response on to the sender; a final response ends the request's count."""
        if response.final:
            self.used_bytes -= self._nbytes.pop(pending, 0)
        to_sender(pending, response)
