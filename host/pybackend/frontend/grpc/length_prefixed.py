"""Length-prefixed messages in the data of a stream: a flag, a length, and as many bytes, perhaps compressed."""

from io import BytesIO
from struct import Struct

from pybackend.frontend.compression import BrokenStreamError, Coding, Inflater
from pybackend.frontend.grpc.errors import CallError
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend.protocol.limits import BodyLimits

PREFIX = Struct(">BI")
PREFIX_BYTES = PREFIX.size

LARGEST_MESSAGE_BYTES = 2**31 - 1

_JOINED_BYTES = 16 * 1024
_PART_BYTES = 64 * 1024
"""Pieces shorter than the one are collected up to the other: a list entry for each byte would cost more than the bytes,
and a view keeps all that was received with it, up to 256 KB."""

_CODINGS = {coding.value.encode(): coding for coding in Coding}
ENCODINGS = frozenset({b"identity", *_CODINGS})
ACCEPTED = b"identity, deflate, gzip"


def whole_message(payload: bytes | memoryview) -> bytes | None:
    """The message in a piece of data that has exactly one, not compressed; None if this may be otherwise."""
    if type(payload) is not bytes or len(payload) < PREFIX_BYTES:
        return None
    flag, size = PREFIX.unpack_from(payload)
    return None if flag or size != len(payload) - PREFIX_BYTES else payload[PREFIX_BYTES:]


def too_large_error(nbytes: int, most_bytes: int, refusal: CallError | None = None) -> CallError:
    """The error for a message that is larger than its method takes; ``refusal`` says why it takes no larger ones."""
    if refusal is not None:  # another object: raised twice, it would keep the call
        return CallError(refusal.status, refusal.message)
    return CallError(
        GrpcStatus.RESOURCE_EXHAUSTED,
        f"a message of {nbytes} bytes exceeds the largest possible one of {most_bytes} bytes",
    )


class MessageReader:
    """Cuts the data of one stream into messages, of which none may be larger than a bound, before and after decompression."""

    def __init__(
        self,
        encoding: bytes,
        limits: BodyLimits,
        most_bytes: int = LARGEST_MESSAGE_BYTES,
        refusal: CallError | None = None,
    ) -> None:
        self._encoding = encoding
        self._limits = limits
        self._most_bytes = most_bytes
        self._refusal = refusal
        self._first: bytes | memoryview | bytearray = b""
        self._at = 0
        self._parts: list[bytes | memoryview | bytearray] = []
        self._inflater: Inflater | None = None
        self.held_bytes = 0  # bytes that were fed and not yet returned

    @property
    def is_inflating(self) -> bool:
        """A message is being decompressed, of which each call of :meth:`next` does a slice."""
        return self._inflater is not None

    @property
    def inflated_bytes(self) -> int:
        return 0 if self._inflater is None else self._inflated.tell()

    def feed(self, payload: bytes | memoryview) -> None:
        """Take the next bytes; they must not change."""
        self.held_bytes += len(payload)
        if len(payload) >= _JOINED_BYTES or not self._parts:
            self._parts.append(payload)
            return
        last = self._parts[-1]
        if type(last) is bytearray and len(last) < _PART_BYTES:
            last += payload
        else:
            self._parts.append(bytearray(payload))

    def compact(self) -> None:
        """Copy what has arrived of a message if it is short: a view would keep all bytes that were received with it."""
        if type(self._first) is memoryview and len(self._first) - self._at < _JOINED_BYTES:
            self._first, self._at = bytes(self._first[self._at :]), 0
        if self._parts and type(self._parts[-1]) is memoryview and len(self._parts[-1]) < _JOINED_BYTES:
            self._parts[-1] = bytes(self._parts[-1])

    def clear(self) -> None:
        """Drop everything: no message is read any more."""
        self._first, self._at, self.held_bytes, self._inflater = b"", 0, 0, None
        self._parts.clear()

    def take_large(self, least_bytes: int) -> tuple[int, list[bytes | memoryview | bytearray]] | None:
        """Take what has arrived of the next message if it is larger than that, and not compressed.

        Others are left to :meth:`next`.

        Returns the message's size, and its first bytes: all that were held, unless another message follows them.
        """
        if self.held_bytes <= PREFIX_BYTES or self._inflater is not None:
            return None
        if len(self._first) - self._at < PREFIX_BYTES:
            self._join()
        flag, size = PREFIX.unpack_from(self._first, self._at)
        if flag or not least_bytes < size <= LARGEST_MESSAGE_BYTES:
            return None
        if self.held_bytes > PREFIX_BYTES + size:
            self._join()
        begin = self._at + PREFIX_BYTES
        if self.held_bytes > PREFIX_BYTES + size:
            self._at = begin + size
            self.held_bytes -= PREFIX_BYTES + size
            return size, [memoryview(self._first)[begin : self._at]]
        pieces = [memoryview(self._first)[begin:], *self._parts]
        self.clear()
        return size, pieces

    def next(self) -> bytes | None:
        """The next message, decompressed; None if it is not complete, or if :attr:`is_inflating` is true afterwards.

        A CallError or InferenceError if it is too large, or cannot be decompressed.
        """
        if self._inflater is not None:
            return self._inflate(self._inflater)
        if self.held_bytes < PREFIX_BYTES:
            return None
        if len(self._first) - self._at < PREFIX_BYTES:
            self._join()
        flag, size = PREFIX.unpack_from(self._first, self._at)
        if flag > 1:
            raise CallError(GrpcStatus.INTERNAL, f"a message has the flag {flag}; it is 0, or 1 for a compressed one")
        if size > self._most_bytes:
            raise too_large_error(size, self._most_bytes, self._refusal)
        if self.held_bytes < PREFIX_BYTES + size:
            return None
        if flag:
            self._inflater = self._begin_inflation(size)
            return self._inflate(self._inflater)
        if len(self._first) - self._at < PREFIX_BYTES + size:
            self._join()
        begin = self._at + PREFIX_BYTES
        self._at = begin + size
        self.held_bytes -= PREFIX_BYTES + size
        message = self._first[begin : self._at]
        if not self.held_bytes:
            self._first, self._at = b"", 0
        return bytes(message)

    def _join(self) -> None:
        """Make one piece of all: called only when a whole message, or its prefix, has arrived."""
        if self._at == len(self._first) and len(self._parts) == 1:
            self._first = self._parts.pop()
        else:
            rest = memoryview(self._first)[self._at :]
            self._first = b"".join((rest, *self._parts))
            self._parts = []
        self._at = 0

    def _begin_inflation(self, size: int) -> Inflater:
        coding = _CODINGS.get(self._encoding)
        if coding is None:
            raise CallError(
                GrpcStatus.INTERNAL, "a message is marked as compressed, and the call has no grpc-encoding for it"
            )
        inflater = Inflater(coding, self._limits)
        self._inflated, self._inflating_bytes = BytesIO(), PREFIX_BYTES + size
        self._at += PREFIX_BYTES
        used = 0
        while size:
            if self._at == len(self._first):
                self._first, self._at = self._parts[used], 0
                used += 1
            view = memoryview(self._first)[self._at : self._at + size]
            inflater.feed(view)
            self._at += len(view)
            size -= len(view)
        del self._parts[:used]
        return inflater

    def _inflate(self, inflater: Inflater) -> bytes | None:
        """Decompress a slice of a message; the message if that was the last one."""
        try:
            data = inflater.step()
            if data is not None:
                self._inflated.write(data)
                if self.inflated_bytes > self._most_bytes:
                    raise too_large_error(self.inflated_bytes, self._most_bytes, self._refusal)
                if not inflater.is_idle:
                    return None
            inflater.finish()
        except BrokenStreamError as error:
            raise CallError(GrpcStatus.INTERNAL, f"a message cannot be decompressed: {error}") from None
        message, self._inflated = self._inflated.getvalue(), BytesIO()  # which copies nothing
        self._inflater = None
        self.held_bytes -= self._inflating_bytes
        if not self.held_bytes:
            self._first, self._at = b"", 0
        return message
