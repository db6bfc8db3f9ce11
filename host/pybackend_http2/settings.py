"""SETTINGS (RFC 9113 section 6.5), and the values and bounds with which a connection is made."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pybackend_http2 import frames
from pybackend_http2.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from pybackend_http2.fields import Use

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6
NO_RFC7540_PRIORITIES: Final = 0x9
"""RFC 9218: this server ignores PRIORITY."""

HARD_FACTOR: Final = 2
"""A header section that exceeds its bound by this factor is not decompressed to its end: decompressing costs time."""

_ENTRY = struct.Struct(">HI")


@dataclass(frozen=True, slots=True)
class PingRules:
    """How often a client may ping."""

    clock: Callable[[], float]  # tells the time in seconds; called when a PING arrives
    interval_s: float  # the least time between two PINGs without an answer's data between them
    idle_interval_s: float  # the same while no stream is open
    max_strikes: int  # PINGs that may come too early


@dataclass(frozen=True, slots=True)
class Config:
    """The values that a server offers its peer, and the bounds that it sets, all for one connection."""

    max_concurrent_streams: int = 1024  # streams that may be open at a time; more are refused
    stream_window_bytes: int = 1024 * 1024  # DATA that a peer may send on a stream before bytes are given back
    # the same for all streams together, at least 65,535: the memory that a peer can fill
    connection_window_bytes: int = 16 * 1024 * 1024
    # the longest frame that is accepted, 16,384 to 16,777,215. DATA is delivered in pieces as it arrives, so a large
    # value costs no memory.
    max_frame_bytes: int = 64 * 1024
    # the largest header section, by the sum of RFC 9113 section 6.5.2 (names, values and 32 bytes per field). Larger
    # requests are answered with status 431; sections, or compressed blocks, of more than twice the bound end the
    # connection.
    max_header_list_bytes: int = 16 * 1024
    max_header_fields: int = 128  # the most fields of a section; requests with more are answered with status 431
    max_continuations: int = 8  # CONTINUATION frames of one header block
    # frames that ask for work without moving a request forward: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA,
    # unknown types, refused streams, frames for closed streams. Finished requests and bytes of DATA in either direction
    # give some back, and so does time (``Connection.time_passed``).
    max_unproductive_frames: int = 4000
    # streams that end by RST_STREAM, sent by either side. A finished request gives one back, and so does time.
    max_resets: int = 500
    # acknowledgements of PING and SETTINGS, and RST_STREAM frames for faults of the peer, that wait because the user of
    # the package takes no output: the peer does not read
    max_unsent_replies: int = 1000
    forgiven_frames_per_second: int = 100  # unproductive frames that a second gives back
    forgiven_resets_per_second: int = 100  # resets that a second gives back
    ping_rules: PingRules | None = None  # how often a peer may ping; None leaves PINGs to ``max_unproductive_frames``
    # makes name and value of a received field into those that are checked, kept and passed on; a value that must not be
    # kept is replaced here, which depends on the name. Blanks that it leaves at the ends of a value are no fault. None
    # leaves them as they are.
    read_text: Callable[[bytes, bytes], tuple[bytes, bytes]] | None = None
    # heads of requests are remembered by their header blocks, and whole requests are recognised by them
    remembers_heads: bool = True
    # what the user does with the fields of a name. Remembered heads lack those that it ignores, or reads apart. None:
    # it reads all.
    use_of: Callable[[bytes], Use] | None = None

    def __post_init__(self) -> None:
        if not frames.DEFAULT_FRAME_BYTES <= self.max_frame_bytes <= frames.LARGEST_FRAME_BYTES:
            raise LocalProtocolError(f"max_frame_bytes={self.max_frame_bytes} is not between 16384 and 16777215")
        if not 0 <= self.stream_window_bytes <= frames.LARGEST_WINDOW_BYTES:
            raise LocalProtocolError(f"stream_window_bytes={self.stream_window_bytes} is not between 0 and 2147483647")
        if not frames.DEFAULT_WINDOW_BYTES <= self.connection_window_bytes <= frames.LARGEST_WINDOW_BYTES:
            raise LocalProtocolError(
                f"connection_window_bytes={self.connection_window_bytes} is not between 65535 and 2147483647"
            )

    def offered(self) -> dict[int, int]:
        """Return the settings for the first SETTINGS frame."""
        return {
            MAX_CONCURRENT_STREAMS: self.max_concurrent_streams,
            INITIAL_WINDOW_SIZE: self.stream_window_bytes,
            MAX_FRAME_SIZE: self.max_frame_bytes,
            MAX_HEADER_LIST_SIZE: self.max_header_list_bytes,
            NO_RFC7540_PRIORITIES: 1,
        }


def encode(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frames.frame(frames.SETTINGS, 0, 0, b"".join(_ENTRY.pack(*entry) for entry in values.items()))


def decode(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the entries of a SETTINGS payload, each checked.

    Raises:
        RemoteProtocolError: a value is outside its range.
    """
    for key, value in _ENTRY.iter_unpack(payload):
        if key == ENABLE_PUSH and value > 1:
            raise RemoteProtocolError(ErrorCode.PROTOCOL_ERROR, "6.5.2", f"SETTINGS_ENABLE_PUSH is {value}")
        if key == INITIAL_WINDOW_SIZE and value > frames.LARGEST_WINDOW_BYTES:
            raise RemoteProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "6.5.2", f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        if key == MAX_FRAME_SIZE and not frames.DEFAULT_FRAME_BYTES <= value <= frames.LARGEST_FRAME_BYTES:
            raise RemoteProtocolError(ErrorCode.PROTOCOL_ERROR, "6.5.2", f"SETTINGS_MAX_FRAME_SIZE is {value}")
        yield key, value
