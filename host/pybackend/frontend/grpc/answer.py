"""The messages of an answer in their order: as they are, or compressed in slices.

A small answer of one message needs no object of these: see :meth:`pybackend.frontend.grpc.call.GrpcCall.reply`.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from pybackend.frontend.compression import DEFLATED_SLICE_BYTES, Coding, deflated
from pybackend.frontend.grpc.errors import OK_TRAILERS, CallError, answer_head, trailers, trailers_only
from pybackend.frontend.grpc.length_prefixed import PREFIX
from pybackend.frontend.grpc.peer import Peer
from pybackend.frontend.request_log import RequestRecord
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc.response import EncodedMessage
from pybackend_http2 import ErrorCode, Stream

log = logging.getLogger(__name__)

_ZLIB_LEVELS = {"low": 1, "medium": 4, "high": 6}
_BY_STRENGTH = (Coding.GZIP, Coding.DEFLATE)
"""The order in which gRPC ranks them."""


class Compression(NamedTuple):
    """The compression of an answer; the level is zlib's."""

    coding: Coding
    level: int


@lru_cache(maxsize=256)
def chosen_compression(level: str, accepted: bytes) -> Compression | None:
    """The compression for a client that accepts these codings, chosen as gRPC's servers do.

    None if it accepts none that is known.

    The level is the operator's: ``low``, ``medium`` or ``high``.
    """
    names = {name.strip() for name in accepted.split(b",")}
    known = [coding for coding in _BY_STRENGTH if coding.value.encode() in names]
    if not known:
        return None
    return Compression(known[{"low": 0, "medium": len(known) // 2, "high": -1}[level]], _ZLIB_LEVELS[level])


def stop_receiving(stream: Stream) -> None:
    """Ask a client that still sends to stop, if it has all of the answer (RFC 9113 section 8.1)."""
    if stream.receiving and not stream.waiting_bytes:
        stream.reset(ErrorCode.NO_ERROR)


class MessageSender:
    """The messages that a call sends."""

    def __init__(self, peer: Peer, stream: Stream, record: RequestRecord | None, coding: str = "") -> None:
        self.peer = peer
        self.stream = stream
        self.record = record  # of the call, for the log; None if nobody wants it
        self._coding = coding
        self.unreleased: Sequence[InferenceResponse] = ()  # responses whose memory is not sent yet

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not taken."""
        return self.stream.waiting_bytes

    def send(self, message: bytes) -> None:
        if self.record is not None:
            self.record.sent_bytes += len(message)
        self.send_head()
        self.stream.send_data(PREFIX.pack(0, len(message)) + message)

    def send_response(self, message: EncodedMessage, response: InferenceResponse) -> None:
        """Send a message, and release the response once its memory is no longer needed."""
        if self.record is not None:
            self.record.sent_bytes += message.nbytes
        self.send_head()
        pieces = message.pieces
        self.stream.send_data(b"".join((PREFIX.pack(0, message.nbytes), pieces[0])))
        for piece in pieces[1:]:
            self.stream.send_data(bytes(piece) if self.peer.is_secure else memoryview(piece))
        if message.borrows_memory:
            self.unreleased = [*self.unreleased, response]
            if not self.stream.waiting_bytes:
                self.release_sent()
        else:
            response.release()

    def send_head(self) -> None:
        """Send the head, if it was not sent before."""
        if not self.stream.head_sent:
            self.stream.send_headers(answer_head(self.record, self._coding))

    def end(self, error: CallError | None) -> None:
        if error is None:
            self.send_head()
            self.stream.send_trailers(OK_TRAILERS)
        elif self.stream.head_sent:
            self.stream.send_trailers(trailers(error.status, error.message))
        else:
            self.stream.send_headers(trailers_only(error.status, error.message), end=True)
        self.stop_receiving()

    def stop_receiving(self) -> None:
        """Ask a client that has the whole answer, and still sends, to stop."""
        stop_receiving(self.stream)

    def release_sent(self) -> None:
        """Release responses whose memory was sent, as soon as the transport has let it go."""
        unreleased, self.unreleased = self.unreleased, ()
        for response in unreleased:
            self.peer.release_when_written(response)

    def drop(self) -> None:
        """Send nothing more: the stream has gone."""
        self.release_sent()


class _Job(NamedTuple):
    """Something to send when all before it is sent: work, and at its end the sending."""

    steps: Iterator[None]
    response: InferenceResponse | None = None  # released if the job is dropped
    nbytes: int = 0  # what it holds meanwhile


class CompressedAnswer:
    """An answer whose large messages are compressed in slices, before they go out by a plain answer."""

    def __init__(self, peer: Peer, stream: Stream, record: RequestRecord | None, compression: Compression) -> None:
        self._plain = MessageSender(peer, stream, record, compression.coding.value)
        self._compression = compression
        self._jobs: deque[_Job] = deque()
        self._queued_bytes = 0

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not taken."""
        return self._queued_bytes + self._plain.unread_bytes

    @property
    def unreleased(self) -> Sequence[InferenceResponse]:
        """Responses whose memory is not sent yet, but for those that are being compressed."""
        return self._plain.unreleased

    def send(self, message: bytes) -> None:
        """Send a small message, after those that are being compressed."""
        self._do(_Job(_later(partial(self._plain.send, message))))

    def send_response(self, message: EncodedMessage, response: InferenceResponse) -> None:
        """Compress and send a message, and release the response once its memory is no longer needed."""
        self._queued_bytes += message.nbytes
        self._do(_Job(self._compressed(message, response), response, message.nbytes))

    def end(self, error: CallError | None) -> None:
        """End the answer after its last message; None for a successful one."""
        self._do(_Job(_later(partial(self._plain.end, error))))

    def stop_receiving(self) -> None:
        """Ask a client that has the whole answer, and still sends, to stop."""
        if not self._jobs:
            self._plain.stop_receiving()

    def release_sent(self) -> None:
        """Release responses whose memory was sent."""
        self._plain.release_sent()

    def drop(self) -> None:
        """Send nothing more: the stream has gone."""
        while self._jobs:
            response = self._jobs.popleft().response
            if response is not None:
                response.release()
        self._queued_bytes = 0
        self._plain.drop()

    def _compressed(self, message: EncodedMessage, response: InferenceResponse) -> Iterator[None]:
        """Compress a message; one that would not become smaller is sent as it is."""
        plain, (coding, level) = self._plain, self._compression
        made: list[bytes] = []
        size = 0
        for piece in deflated(message.pieces, coding, level):
            if piece:
                made.append(piece)
                size += len(piece)
            if size >= message.nbytes:
                plain.send_response(message, response)
                return
            if message.nbytes > DEFLATED_SLICE_BYTES:
                yield
        response.release()
        if plain.record is not None:
            plain.record.sent_bytes += size
        plain.send_head()
        plain.stream.send_data(PREFIX.pack(1, size) + made[0])
        for piece in made[1:]:
            plain.stream.send_data(piece)

    def _do(self, job: _Job) -> None:
        """Do a job at once if it is short and the first; else after those before it, in slices."""
        if self._jobs:
            self._jobs.append(job)
        elif not self._step(job):
            self._jobs.append(job)
            self._plain.peer.slices.add(self._go_on)

    def _step(self, job: _Job) -> bool:
        """Do a slice of a job; True if it is done."""
        try:
            next(job.steps)
        except StopIteration:
            self._queued_bytes -= job.nbytes
            return True
        return False

    def _go_on(self) -> bool:
        """Do a slice of the first jobs; True if there is more."""
        stream, jobs = self._plain.stream, self._jobs
        if not jobs:
            return False
        call = stream.receiver
        try:
            while jobs and self._step(jobs[0]):
                jobs.popleft()
        except Exception:  # the other calls of the server go on
            log.exception("A response could not be compressed")
            stream.reset(ErrorCode.INTERNAL_ERROR)
            call.on_reset(ErrorCode.INTERNAL_ERROR, None)
            return False
        self._plain.peer.flush_soon()
        if jobs:
            return True
        if not stream.waiting_bytes:
            call.on_drained()
        return False


def _later(action: Callable[[], None]) -> Iterator[None]:
    """A job without work."""
    action()
    yield from ()
