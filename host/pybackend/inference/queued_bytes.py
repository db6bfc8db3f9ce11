"""How many bytes of requests the server has taken and not answered yet, for those who set a bound to that."""

from __future__ import annotations

from functools import partial

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse


class QueuedBytes:
    """The bytes of all models' requests together; those that models ask each other do not count, nor are they refused.

    Args:
        limit_bytes: the bound.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def weigh(self, request: InferenceRequest) -> int:
        """The request's bytes.

        Raises:
            InferenceError: UNAVAILABLE, with them there would be too many.
        """
        nbytes = sum(len(tensor.data) for tensor in request.inputs)  # type: ignore[arg-type,misc]  # bytes are there
        if self.used_bytes + nbytes > self.limit_bytes:
            raise InferenceError(
                f"{request.prefix}the server is overloaded: it holds {self.used_bytes} bytes of requests that wait or are "
                f"executed, and {nbytes} more would be beyond its limit of {self.limit_bytes} (--max-queued-bytes). Try "
                "again later",
                ErrorCode.UNAVAILABLE,
            )
        return nbytes

    def until_answered(self, nbytes: int, on_response: OnResponse) -> OnResponse:
        """What to submit a request with in place of ``on_response``; :meth:`add` its bytes once it is taken."""
        return partial(self._pass_on, nbytes, on_response)

    def add(self, nbytes: int) -> None:
        """A request was taken."""
        self.used_bytes += nbytes

    def _pass_on(self, nbytes: int, on_response: OnResponse, response: InferenceResponse) -> None:
        if response.final:
            self.used_bytes -= nbytes
        on_response(response)
