"""Decompression in slices, whatever the pieces, and compression in slices."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.frontend.compression import (
    DEFLATED_SLICE_BYTES,
    INFLATED_SLICE_BYTES,
    BrokenStreamError,
    Coding,
    Inflater,
    deflated,
)
from pybackend.protocol.limits import BodyLimits

LIMIT = 1 << 22
PACKED = {Coding.GZIP: gzip.compress, Coding.DEFLATE: zlib.compress}


def inflated(pieces, coding=Coding.GZIP, limit=LIMIT):
    """All the output; fed piece by piece."""
    inflater = Inflater(coding, BodyLimits(limit))
    made = []
    for piece in pieces:
        inflater.feed(piece)
        while (data := inflater.step()) is not None:
            assert len(data) <= INFLATED_SLICE_BYTES
            made.append(data)
        assert inflater.is_idle
        assert inflater.waiting_bytes == 0
    inflater.finish()
    return b"".join(made)


contents = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda text, count: text * count, st.binary(min_size=1, max_size=100), st.integers(1, 20_000)),
)


def cut(data, marks):
    """The data in pieces, at these parts of its length."""
    places = sorted({int(len(data) * mark) for mark in marks})
    return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(contents, st.lists(st.floats(0, 1), max_size=8), st.sampled_from(Coding))
def test_pieces_make_no_difference(content, marks, coding):
    assert inflated(cut(PACKED[coding](content), marks), coding) == content


@given(contents, st.lists(st.floats(0, 1), max_size=8), st.sampled_from(Coding), st.sampled_from([1, 6]))
def test_compressed_in_slices(content, marks, coding, level):
    packed = b"".join(deflated(cut(content, marks), coding, level))
    assert (gzip.decompress if coding is Coding.GZIP else zlib.decompress)(packed) == content


def test_each_slice_of_a_large_buffer_is_a_step():
    pieces = [bytes(10 * DEFLATED_SLICE_BYTES)]
    assert sum(1 for _ in deflated(pieces, Coding.GZIP, 1)) == 11


@given(st.binary(max_size=300), st.floats(0, 1), st.binary(min_size=1, max_size=10), st.booleans())
def test_broken_streams(content, mark, more, is_cut):
    packed = gzip.compress(content)
    packed = packed[: int(mark * (len(packed) - 1))] if is_cut else packed + more
    for pieces in ([packed], [packed[at : at + 1] for at in range(len(packed))]):
        with pytest.raises(BrokenStreamError):
            inflated(pieces)


def test_sizes_at_and_over_the_limit():
    assert len(inflated([gzip.compress(bytes(LIMIT))])) == LIMIT
    with pytest.raises(
        InferenceError, match=f"Decompressed data size exceeds the maximum allowed value of {LIMIT} bytes"
    ):
        inflated([gzip.compress(bytes(LIMIT + 1))])


def test_a_stream_of_nothing():
    """Empty blocks without end are work, but no memory."""
    empty = zlib.compressobj(1, zlib.DEFLATED, 31)
    head = empty.compress(b"") + empty.flush(zlib.Z_FULL_FLUSH)
    inflater = Inflater(Coding.GZIP, BodyLimits(LIMIT))
    inflater.feed(head + b"\0\0\0\xff\xff" * 200_000)
    steps = 0
    while (data := inflater.step()) is not None:
        assert not data
        steps += 1
    assert steps >= 10
