"""The layout of frames (RFC 9113 sections 4.1 and 6): type numbers, flags, and the making of small frames."""

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

NAMES: Final = (
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

FRAME_HEADER_BYTES: Final = 9
FRAME_HEADER: Final = struct.Struct(">IBI")
"""A frame's header as three numbers: length and type in one word (``length << 8 | type``), flags, stream."""

U32: Final = struct.Struct(">I")
STREAM_BITS: Final = 0x7FFF_FFFF
LARGEST_WINDOW_BYTES: Final = 2**31 - 1
DEFAULT_WINDOW_BYTES: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
LARGEST_FRAME_BYTES: Final = 2**24 - 1


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def name_of(kind: int) -> str:
    """Return the name of a frame type for messages."""
    return NAMES[kind] if kind < len(NAMES) else f"type {kind:#x}"


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, U32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, U32.pack(increment))


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """Return a GOAWAY frame."""
    return frame(GOAWAY, 0, 0, U32.pack(last_stream_id) + U32.pack(code) + debug)
