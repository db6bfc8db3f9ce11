"""The compressed body of an infer request: decompressed in slices as it arrives."""

from __future__ import annotations

from collections.abc import Generator

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.compression import BrokenStreamError, Coding, Inflater
from pybackend.frontend.http.infer_body import StreamedBody
from pybackend.protocol.infer_plan import InferPlan
from pybackend.protocol.limits import BodyLimits


class CompressedBody:
    """Stands in front of a :class:`StreamedBody`, and is used as one, except that nothing is received into it directly.

    Args:
        body: receives the decompressed bytes.
        coding: the body's compression.
        limits: bound of the decompressed size.

    Attributes:
        work: work to do in steps before the body can continue, as for :class:`StreamedBody`.
    """

    def __init__(self, body: StreamedBody, coding: Coding, limits: BodyLimits) -> None:
        self._body = body
        self._inflater = Inflater(coding, limits)
        self.work: Generator[None, None, None] | None = None

    def feed(self, data: bytes) -> None:
        """Process the next compressed bytes: a slice at once, what follows as :attr:`work`.

        Raises:
            InferenceError: the bytes make the request invalid, or there is no memory for them.
        """
        self._inflater.feed(data)
        if self.work is None:
            piece = self._step()
            if piece is not None:
                self._body.feed(piece)
            if self._body.work is not None or not self._inflater.is_idle:
                self.work = self._pass_on()

    def _pass_on(self) -> Generator[None, None, None]:
        body = self._body
        while True:
            while body.work is not None:
                yield from body.work
                body.work = None
            piece = self._step()
            if piece is None:
                return
            body.feed(piece)
            yield

    def _step(self) -> bytes | None:
        try:
            return self._inflater.step()
        except BrokenStreamError as error:
            raise _refusal(error) from None

    @property
    def private_bytes(self) -> int:
        """Bytes of the body buffered outside the model's memory."""
        return self._inflater.waiting_bytes + self._body.private_bytes

    def complete(self) -> None:
        """Record the end of the body.

        Raises:
            InferenceError: bytes of the compressed stream are missing, or the model was unloaded.
        """
        try:
            self._inflater.finish()
        except BrokenStreamError as error:
            raise _refusal(error) from None
        self._body.complete()
        self.work = self._body.work

    def finish(self) -> InferPlan:
        """The request, once the body is complete and no work is pending.

        Raises:
            InferenceError: the request is invalid.
        """
        return self._body.finish()

    def release(self) -> None:
        """Release all memory of a request that will not be submitted."""
        self.work = None
        self._inflater.clear()
        self._body.release()


Body = StreamedBody | CompressedBody
"""The body of any request that is not small."""


def _refusal(error: BrokenStreamError) -> InferenceError:
    return InferenceError(f"the body cannot be decompressed: {error}", ErrorCode.INVALID_ARG)
