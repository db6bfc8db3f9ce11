"""Messages cut out of data, whatever pieces it comes in."""

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.frontend.grpc.errors import CallError
from pybackend.frontend.grpc.length_prefixed import MessageReader
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend.protocol.limits import BodyLimits
from tests.support.grpc_calls import framed

LIMITS = BodyLimits(1 << 20)


def reader(encoding=b"identity"):
    return MessageReader(encoding, LIMITS)


def feed(made, data):
    made.feed(memoryview(data) if len(data) >= 4096 else data)  # as HTTP/2 delivers it


@settings(max_examples=60)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 20), st.sampled_from([4096, 16_384, 70_000])), max_size=8),
    cuts=st.lists(st.integers(20, 30_000), min_size=1, max_size=20),
    compacts=st.booleans(),
)
def test_any_messages_in_any_pieces(sizes, cuts, compacts):
    messages = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    data, made, found = b"".join(map(framed, messages)), reader(), []
    turn = 0
    while data:
        size = cuts[turn % len(cuts)]
        turn += 1
        feed(made, data[:size])
        data = data[size:]
        while (message := made.next()) is not None:
            found.append(message)
        if compacts:
            made.compact()
    assert found == messages
    assert made.held_bytes == 0


def test_a_message_byte_by_byte():
    data, made = framed(bytes(5000)) * 2, reader()
    found = []
    for at in range(len(data)):
        feed(made, data[at : at + 1])
        found.append(made.next())
    assert [each for each in found if each is not None] == [bytes(5000)] * 2


def test_short_pieces_keep_no_large_buffer():
    received = memoryview(bytes(256_000))
    for prefix in (b"", framed(bytes(10))):
        made = reader()
        data = prefix + framed(bytes(100_000))[:8000]
        received = memoryview(data + bytes(248_000))
        made.feed(received[: len(data)])
        while made.next() is not None:
            pass
        made.compact()
        received.release()  # which a view of it would not allow


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_messages(encoding, compress):
    made = reader(encoding)
    feed(made, framed(compress(b"abc" * 1000), 1) + framed(b"plain"))
    assert made.next() == b"abc" * 1000
    assert made.next() == b"plain"


def test_a_message_that_grows_beyond_the_limit():
    made = reader(b"gzip")
    feed(made, framed(gzip.compress(bytes(LIMITS.max_input_size_bytes + 1)), 1))
    slices = iter(made.next, b"")
    with pytest.raises(InferenceError, match="max-input-size"):
        list(slices)


def test_large_messages_are_decompressed_in_slices():
    made = reader(b"gzip")
    content = bytes(range(256)) * 4000
    data = framed(gzip.compress(content, 1), 1) + framed(b"plain")
    for at in range(0, len(data), 700):
        feed(made, data[at : at + 700])
    slices = 0
    while (message := made.next()) is None:
        assert made.is_inflating
        assert made.inflated_bytes == (slices + 1) * 65_536
        assert made.held_bytes == len(data)
        slices += 1
    assert message == content
    assert slices >= 10
    assert (made.next(), made.held_bytes, made.is_inflating, made.inflated_bytes) == (b"plain", 0, False, 0)


FAULTS = {
    "no compression": (b"gzip", framed(b"abc", 1), "is not compressed as gzip"),
    "cut compression": (b"gzip", framed(gzip.compress(b"abc")[:-4], 1), "in the middle of its gzip stream"),
    "more than compression": (b"gzip", framed(gzip.compress(b"abc") + b"d", 1), "1 bytes follow the end"),
    "nothing at all": (b"gzip", framed(b"", 1), "in the middle of its gzip stream"),
    "no encoding": (b"identity", framed(b"abc", 1), "no grpc-encoding"),
    "flag": (b"gzip", framed(b"abc", 2), "has the flag 2"),
}


@pytest.mark.parametrize(("encoding", "data", "text"), FAULTS.values(), ids=FAULTS)
def test_faults(encoding, data, text):
    made = reader(encoding)
    feed(made, data)
    with pytest.raises(CallError, match=text) as caught:
        made.next()
    assert caught.value.status is GrpcStatus.INTERNAL


def test_the_largest_message():
    made = reader()
    feed(made, b"\0\x7f\xff\xff\xff")
    assert made.next() is None
    made = reader()
    feed(made, b"\0\x80\0\0\0")
    with pytest.raises(CallError, match="2147483648 bytes exceeds") as caught:
        made.next()
    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED
