"""Calls whose responses are compressed: in slices, and in their order.

Only calls of inference are made this way, and only if the operator and the client both want it: others cost nothing more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from pybackend.frontend.compression import DEFLATED_SLICE_BYTES, Coding, deflated
from pybackend.frontend.grpc.call import Call
from pybackend.frontend.grpc.errors import CallError, head_with_encoding
from pybackend.frontend.grpc.framing import PREFIX
from pybackend.frontend.grpc.infer_call import InferCall
from pybackend.frontend.grpc.stream_call import StreamInferCall
from pybackend.frontend.http2 import ErrorCode, RemoteProtocolError
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc.response import EncodedMessage

log = logging.getLogger(__name__)

_ZLIB_LEVELS = {"low": 1, "medium": 4, "high": 6}
_BY_STRENGTH = (Coding.GZIP, Coding.DEFLATE)
"""The order in which gRPC ranks them."""


@lru_cache(maxsize=256)
def response_coding(level: str, accepted: bytes) -> Coding | None:
    """The compression for a client, chosen as gRPC's servers do.

    Args:
        level: ``low``, ``medium`` or ``high``.
        accepted: the client's ``grpc-accept-encoding``; empty if there is none.

    Returns:
        None if the client accepts none.
    """
    names = {name.strip() for name in accepted.split(b",")}
    known = [coding for coding in _BY_STRENGTH if coding.value.encode() in names]
    if not known:
        return None
    return known[{"low": 0, "medium": len(known) // 2, "high": -1}[level]]


class _Job:
    """Something to send when all before it is sent.

    Attributes:
        steps: the work, and at its end the sending.
        response: released if the job is dropped.
        nbytes: what it holds meanwhile.
    """

    __slots__ = ("nbytes", "response", "steps")

    def __init__(self, steps: Iterator[None], response: InferenceResponse | None = None, nbytes: int = 0) -> None:
        self.steps = steps
        self.response = response
        self.nbytes = nbytes


class CompressedAnswers(Call):
    """The part of a call that compresses.

    Attributes:
        coding: the compression.
        level: ``low``, ``medium`` or ``high``.
    """

    coding: Coding
    level: str
    _jobs: deque[_Job] | None = None
    _queued_bytes = 0

    def send_encoded(self, message: EncodedMessage, response: InferenceResponse) -> None:
        """Compress and send a message, and release the response once its memory is no longer needed."""
        self._queued_bytes += message.nbytes
        self._do(_Job(self._compressed(message, response), response, message.nbytes))

    def send(self, message: bytes) -> None:
        """Send a small message, after those that are being compressed."""
        self._do(_Job(self._later(partial(super().send, message))))

    def answer(self, message: EncodedMessage, response: InferenceResponse) -> None:
        """Send the only message of a successful call, and end it."""
        self.send_encoded(message, response)
        self.finish()

    def _send_end(self) -> None:
        self._do(_Job(self._later(super()._send_end)))

    def _send_failure(self, error: CallError) -> None:
        self._do(_Job(self._later(partial(super()._send_failure, error))))

    def _send_head(self) -> None:
        if not self.stream.head_sent:
            self.stream.send_headers(head_with_encoding(self.coding.value))

    def _stop_receiving(self) -> None:
        if not self._jobs:
            super()._stop_receiving()

    def on_reset(self, code: int, error: RemoteProtocolError | None) -> None:
        """The client has cancelled the call, or its connection has ended."""
        self._drop_jobs()
        super().on_reset(code, error)

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not taken."""
        return self._queued_bytes + super().unread_bytes

    def _later(self, action: Callable[[], None]) -> Iterator[None]:
        """A job without work."""
        action()
        yield from ()

    def _compressed(self, message: EncodedMessage, response: InferenceResponse) -> Iterator[None]:
        """Compress a message; one that would not become smaller is sent as it is."""
        made: list[bytes] = []
        size = 0
        for piece in deflated(message.pieces, self.coding, _ZLIB_LEVELS[self.level]):
            if piece:
                made.append(piece)
                size += len(piece)
            if size >= message.nbytes:
                super().send_encoded(message, response)
                return
            if message.nbytes > DEFLATED_SLICE_BYTES:
                yield
        response.release()
        if self._record is not None:
            self._record.sent_bytes += size
        self._send_head()
        self.stream.send_data(PREFIX.pack(1, size) + made[0])
        for piece in made[1:]:
            self.stream.send_data(piece)

    def _do(self, job: _Job) -> None:
        """Do a job at once if it is short and the first; else after those before it, in slices."""
        if self._jobs:
            self._jobs.append(job)
        elif not self._step(job):
            self._jobs = deque([job])
            self.connection.slices.add(self._go_on_with_jobs)

    def _step(self, job: _Job) -> bool:
        """Do a slice of a job; True if it is done."""
        try:
            next(job.steps)
        except StopIteration:
            self._queued_bytes -= job.nbytes
            return True
        return False

    def _go_on_with_jobs(self) -> bool:
        if not self._jobs:
            return False
        try:
            while self._jobs and self._step(self._jobs[0]):
                self._jobs.popleft()
                if self.is_over and not self._jobs:
                    self._stop_receiving()
        except Exception:  # the other calls of the server go on
            log.exception("A response of %s could not be compressed", self.head.path)
            self._drop_jobs()
            self.stream.reset(ErrorCode.INTERNAL_ERROR)
            self.on_reset(ErrorCode.INTERNAL_ERROR, None)
            return False
        self.connection.flush_soon()
        if self._jobs:
            return True
        if not self.is_over and not self.stream.waiting_bytes:
            self.on_writable()
        return False

    def _drop_jobs(self) -> None:
        jobs, self._jobs = self._jobs, None
        for job in jobs or ():
            if job.response is not None:
                job.response.release()
        self._queued_bytes = 0


class CompressedInferCall(CompressedAnswers, InferCall):
    """``ModelInfer`` with a compressed response."""


class CompressedStreamInferCall(CompressedAnswers, StreamInferCall):
    """``ModelStreamInfer`` with compressed responses."""
