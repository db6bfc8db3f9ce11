"""Frames: any stream, cut anywhere, gives the frames that were put in; anything else is refused or waited for."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend_wire.errors import LocalProtocolError, RemoteProtocolError
from pybackend_wire.framing import (
    HEADER,
    MAX_METADATA_BYTES,
    MAX_TAIL_BYTES,
    UNLIMITED,
    FrameDecoder,
    frame_header,
)

PARTS = st.tuples(st.binary(max_size=300), st.binary(max_size=300))


def encoded(frames):
    return b"".join(frame_header(len(metadata), len(tail)) + metadata + tail for metadata, tail in frames)


def fed(decoder, data, cuts=()):
    """Every frame of a stream that arrives in pieces, as sockets deliver it: never more than there is room for."""
    frames = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(edges):
        piece = memoryview(data)[begin:end]
        while piece:
            room = decoder.get_buffer()
            assert len(room) > 0
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            frames += decoder.received(count)
            piece = piece[count:]
    return frames


@given(st.lists(PARTS, max_size=8), st.lists(st.integers(min_value=0), max_size=8), st.integers(8, 400))
def test_frames_cut_anywhere(frames, cuts, read_bytes):
    decoder = FrameDecoder(read_bytes=read_bytes)
    received = fed(decoder, encoded(frames), cuts)
    assert [(frame.metadata, bytes(frame.tail)) for frame in received] == frames
    assert decoder._start == decoder._end


@given(st.lists(PARTS, min_size=1, max_size=4), st.integers(min_value=0), st.integers(8, 400))
def test_frame_that_is_not_whole_is_waited_for(frames, cut, read_bytes):
    data = encoded(frames)
    cut %= len(data)
    decoder = FrameDecoder(read_bytes=read_bytes)
    received = fed(decoder, data[:cut])
    assert len(received) < len(frames)
    # What is still to come makes up for it.
    received += fed(decoder, data[cut:])
    assert [(frame.metadata, bytes(frame.tail)) for frame in received] == frames


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(data):
    decoder = FrameDecoder()
    try:
        frames = fed(decoder, data)
    except RemoteProtocolError:
        return
    # Whatever came out, nothing was lost and nothing was invented.
    assert (
        encoded([(frame.metadata, bytes(frame.tail)) for frame in frames])
        == data[: len(data) - (decoder._end - decoder._start)]
    )


@pytest.mark.parametrize(
    ("metadata_bytes", "tail_bytes"),
    [(MAX_METADATA_BYTES + 1, 0), (0, MAX_TAIL_BYTES + 1), (2**32 - 1, 2**32 - 1)],
)
def test_oversize_is_refused_on_both_sides(metadata_bytes, tail_bytes):
    with pytest.raises(LocalProtocolError):
        frame_header(metadata_bytes, tail_bytes)
    with pytest.raises(RemoteProtocolError):
        fed(FrameDecoder(), HEADER.pack(metadata_bytes, tail_bytes))
    # A stub takes from its host whatever a header can say.
    assert fed(FrameDecoder(2**32, 2**32, 64), HEADER.pack(1, 1) + b"mt") == [(b"m", bytearray(b"t"))]


def test_largest_frame():
    frame_header(MAX_METADATA_BYTES, MAX_TAIL_BYTES)
    metadata = b"m" * MAX_METADATA_BYTES
    ((received, tail),) = fed(FrameDecoder(), frame_header(len(metadata), 3) + metadata + b"abc")
    assert (received == metadata, tail) == (True, b"abc")


def test_stub_accepts_more_than_the_host():
    data = b"m" * (MAX_METADATA_BYTES + 1)
    ((received, _),) = fed(FrameDecoder(UNLIMITED, UNLIMITED), HEADER.pack(len(data), 0) + data)
    assert received == data


def test_buffer_shrinks_back():
    decoder = FrameDecoder(read_bytes=1024)
    fed(decoder, frame_header(0, 10_000_000) + bytes(10_000_000))
    fed(decoder, frame_header(0, 10) + bytes(10))
    assert len(decoder.get_buffer()) <= 1024


def test_tails_are_private_and_writable():
    decoder = FrameDecoder()
    first, second = fed(decoder, encoded([(b"", b"abc"), (b"", b"abc")]))
    first.tail[0] = 0
    fed(decoder, encoded([(b"", b"xyz")] * 3))
    assert (first.tail, second.tail) == (b"\0bc", b"abc")
