"""Frames on a byte stream, without any I/O: bytes in, frames out.

A frame is an 8-byte header (metadata length and tail length, little-endian 32 bit each), metadata (encoded messages)
and a tail (raw tensor bytes that the messages point into). Metadata is msgpack if both sides have it, otherwise json;
never pickle.
"""

import ctypes
import json
import struct
from operator import itemgetter
from typing import Any, Callable, List, NamedTuple, Sequence, Union

from pybackend_wire.errors import LocalProtocolError, RemoteProtocolError

HEADER = struct.Struct("<II")
_HEADER_BYTES, _unpack_header = HEADER.size, HEADER.unpack_from

MAX_METADATA_BYTES = 16 * 1024 * 1024
"""The host's limit for a stub's frame: room for an auto-completed configuration and for long error texts."""

MAX_TAIL_BYTES = 64 * 1024 * 1024
"""The host's limit for a stub's frame: tails carry only small tensors."""

UNLIMITED = 2**32 - 1
"""The stub's limit for the host's frames: it trusts its host, which bounds clients' data."""

MOST_DESCRIPTORS = 32
"""Most file descriptors that travel with one piece of the stream; receivers have room for that many."""

_READ_BYTES = 256 * 1024

_LIST, _INT, _FIRST = {list}, {int}, itemgetter(0)

_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]


class Frame(NamedTuple):
    """One frame; ``tail`` is private to the receiver and writable."""

    metadata: bytearray
    tail: bytearray


def frame_header(metadata_bytes: int, tail_bytes: int) -> bytes:
    """Return the header of a stub's frame."""
    if metadata_bytes > MAX_METADATA_BYTES or tail_bytes > MAX_TAIL_BYTES:
        raise LocalProtocolError(
            f"frame of {metadata_bytes} metadata and {tail_bytes} tail bytes exceeds the limits {MAX_METADATA_BYTES} and {MAX_TAIL_BYTES}"
        )
    return HEADER.pack(metadata_bytes, tail_bytes)


def _uninitialised(size: int) -> bytearray:
    """Return that many uninitialised bytes; unlike the zeroed ones of ``bytearray(size)``, unused pages take no memory.

    There are two of these buffers for each stub.
    """
    octets: bytearray = _new_bytearray(None, size)
    return octets


class FrameDecoder:
    """Cuts a byte stream into frames. Read into :meth:`get_buffer`, then pass the count to :meth:`received`.

    Memory: one buffer that grows to the largest frame seen and shrinks back once that frame has been returned.
    """

    def __init__(
        self,
        max_metadata_bytes: int = MAX_METADATA_BYTES,
        max_tail_bytes: int = MAX_TAIL_BYTES,
        read_bytes: int = _READ_BYTES,
    ) -> None:
        self._max_metadata_bytes = max_metadata_bytes
        self._max_tail_bytes = max_tail_bytes
        self._read_bytes = read_bytes
        self._buffer = _uninitialised(read_bytes)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes of the stream; never empty."""
        return self._view[self._end :] if self._end else self._view

    def received(self, count: int) -> "List[Frame]":
        """Process ``count`` bytes that were read into :meth:`get_buffer`, and return the frames that they complete.

        Raises RemoteProtocolError if a header announces more than the limits allow.
        """
        self._end = received = self._end + count
        buffer, start, needed = self._buffer, self._start, _HEADER_BYTES
        frames: List[Frame] = []
        while received - start >= _HEADER_BYTES:
            metadata_bytes, tail_bytes = _unpack_header(buffer, start)
            if metadata_bytes > self._max_metadata_bytes or tail_bytes > self._max_tail_bytes:
                raise RemoteProtocolError(f"frame announces {metadata_bytes} metadata and {tail_bytes} tail bytes")
            begin = start + _HEADER_BYTES
            middle = begin + metadata_bytes
            end = middle + tail_bytes
            if received < end:
                needed = end - start
                break
            frames.append(Frame(buffer[begin:middle], buffer[middle:end]))
            start = end
        if start == received and len(buffer) == self._read_bytes:  # the usual case: whole frames of a common size
            self._start = self._end = 0
        else:
            self._start = start
            self._make_room(needed)
        return frames

    def _make_room(self, needed: int) -> None:
        """Make room for the rest of a frame of ``needed`` bytes; the bytes received so far are its beginning."""
        left = self._end - self._start
        if left and self._start + needed <= len(self._buffer) and self._end < len(self._buffer):
            return
        size = max(self._read_bytes, needed)
        rest = bytes(self._view[self._start : self._end])
        if len(self._buffer) != size:
            self._buffer = _uninitialised(size)
            self._view = memoryview(self._buffer)
        self._view[:left] = rest
        self._start, self._end = 0, left


class Codec(NamedTuple):
    """An encoding of plain structures; ``loads`` raises ValueError (or a subclass) on garbage."""

    name: str
    dumps: "Callable[[Any], bytes]"
    loads: "Callable[[Union[bytes, bytearray]], Any]"


def _json_dumps(value: Any) -> bytes:
    # A model's texts may contain lone surrogates, which UTF-8 cannot express and no receiver accepts.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


JSON = Codec("json", _json_dumps, json.loads)


def available() -> "List[Codec]":
    """Return the codecs that this interpreter can use, the preferred one first."""
    try:
        import msgpack
    except ImportError:
        return [JSON]
    # The pure-Python fallback of msgpack costs 20 times the C extension, far more than json.
    if getattr(msgpack.Packer, "__module__", "").endswith("fallback"):
        return [JSON]
    packer = msgpack.Packer(autoreset=True, unicode_errors="replace")

    def loads(data: "Union[bytes, bytearray]") -> Any:
        try:
            return msgpack.unpackb(data, strict_map_key=True)
        except ValueError:
            raise
        except Exception as error:  # some of msgpack's exceptions are not ValueErrors
            raise ValueError(str(error)) from error

    return [Codec("msgpack", packer.pack, loads), JSON]


def encode_frame(codec: Codec, messages: "Sequence[Any]", tail: "Sequence[Any]" = ()) -> bytes:
    """Encode messages as one frame; ``tail`` holds bytes-like chunks in the order of the messages' offsets."""
    metadata = codec.dumps(messages)
    if not tail:
        return frame_header(len(metadata), 0) + metadata
    raw = b"".join(tail)
    return frame_header(len(metadata), len(raw)) + metadata + raw


def decode_frame(codec: Codec, frame: Frame) -> "List[List[Any]]":
    """Decode the messages of a frame."""
    try:
        messages = codec.loads(frame.metadata)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"metadata is not {codec.name}: {error}") from error
    try:  # without a loop in Python: a frame has many small messages
        if type(messages) is list and {*map(type, messages)} <= _LIST and {*map(type, map(_FIRST, messages))} <= _INT:
            return messages
    except IndexError:  # an empty one
        pass
    raise RemoteProtocolError("metadata is not a list of messages")
