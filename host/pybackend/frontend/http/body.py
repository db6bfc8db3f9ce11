"""Bodies of requests while they arrive: what their bytes become.

A reader feeds them, and counts what they hold: a connection for infer, an ``Arrival`` for ASGI routes.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from pybackend.errors import ErrorCode, InferenceError
from pybackend.protocol.steps import Steps

_T_co = TypeVar("_T_co", covariant=True)

_DONE = object()


class Body(ABC, Generic[_T_co]):
    """A body. Its methods raise an InferenceError if it is invalid, or if there is no memory for it.

    Attributes:
        work: to do in steps before the body can continue; None if there is none. Bytes that are fed meanwhile wait.
    """

    work: Steps[None] | None = None

    def step(self) -> bool:
        """Do the next slice of the work; False if none is left."""
        work = self.work
        if work is not None and next(work, _DONE) is _DONE and self.work is work:
            self.work = None
        return self.work is not None

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Process the next bytes, in slices if it takes long: all but the first slice are :attr:`work`."""

    def room(self) -> memoryview | None:
        """Memory for the next bytes, if the kernel should write them there; None if they must be fed."""
        return None

    def stored(self, count: int) -> None:
        """Record that this many bytes were written to :meth:`room`."""

    @property
    @abstractmethod
    def private_bytes(self) -> int:
        """Bytes of the body buffered outside the model's memory."""

    def complete(self) -> None:
        """Record the end of the body; afterwards :attr:`work` may be pending before :meth:`finish`."""

    @abstractmethod
    def finish(self) -> _T_co:
        """The meaning of the body, once it is complete and no work is pending."""

    @abstractmethod
    def release(self) -> None:
        """Release all memory of a body that will not be used."""


class RouteLimit:
    """The largest size that a route takes; the advice says where larger data belongs."""

    def __init__(self, most_bytes: int, advice: str = "") -> None:
        self._most_bytes = most_bytes
        self._advice = advice

    def check(self, nbytes: int) -> None:
        """Raise InferenceError INVALID_ARG for a larger size."""
        if nbytes > self._most_bytes:
            raise InferenceError(
                f"the body exceeds {self._most_bytes} bytes, the most that this route accepts"
                f"{self._advice and f': {self._advice}'}",
                ErrorCode.INVALID_ARG,
            )


class BoundedBody(Body[_T_co]):
    """A body that is not larger than its route takes. It lies in private memory."""

    def __init__(self, limit: RouteLimit) -> None:
        self.limit = limit
        self._arrived_bytes = 0

    def feed(self, data: bytes) -> None:
        self._arrived_bytes += len(data)
        self.limit.check(self._arrived_bytes)
        self._take(data)

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Process the next bytes, which the route takes."""

    @property
    def private_bytes(self) -> int:
        return self._arrived_bytes

    def release(self) -> None:
        self.work = None
        self._arrived_bytes = 0


class WholeBody(BoundedBody[bytes]):
    """A body that is used as it is, once all of it is there."""

    def __init__(self, limit: RouteLimit) -> None:
        super().__init__(limit)
        self._collected = bytearray()

    def _take(self, data: bytes) -> None:
        self._collected += data

    def finish(self) -> bytes:
        return bytes(self._collected)

    def release(self) -> None:
        super().release()
        self._collected.clear()
