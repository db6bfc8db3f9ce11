"""Our idea of where a chunked body ends is the parser's, whatever the bytes and however they are cut."""

from contextlib import suppress
from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.frontend.http.request_reader import LONGEST_LINE_BYTES, MOST_CHUNKS, ChunkedBodyError, ChunkedEnd

HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\n\r\n"


class Listener:
    def __init__(self):
        self.complete = 0

    def on_message_complete(self):
        self.complete += 1


def parsers_end(body):
    """How many bytes the parser takes for the body; None if it refuses them before, or wants more."""
    listener = Listener()
    parser = httptools.HttpRequestParser(listener)
    parser.feed_data(HEAD)
    for at in range(len(body)):
        try:
            parser.feed_data(body[at : at + 1])
        except httptools.HttpParserError:
            return None
        if listener.complete:
            return at + 1
    return None


def our_end(pieces):
    """How many bytes of these pieces belong to the body."""
    chunked_end, total = ChunkedEnd(), 0
    for piece in pieces:
        end = chunked_end.find(piece)
        total += end
        if end < len(piece):
            break
    return total


def cut(data, places):
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[begin:end] for begin, end in pairwise(borders)]


sizes = st.sampled_from(["{:x}", "{:X}", "{:04x}", "{:x};a=b", '{:x};a="b c"'])
chunks = st.lists(st.tuples(st.binary(min_size=1, max_size=40), sizes), max_size=5)
trailers = st.lists(st.sampled_from([b"X-T: 1", b"A: b; c"]), max_size=2)


def encoded(chunks, trailers):
    body = b"".join(form.format(len(data)).encode() + b"\r\n" + data + b"\r\n" for data, form in chunks)
    return body + b"0\r\n" + b"".join(line + b"\r\n" for line in trailers) + b"\r\n"


@given(chunks, trailers, st.lists(st.integers(0, 1000), max_size=6))
def test_end_of_good_bodies(chunks, trailers, places):
    body = encoded(chunks, trailers)
    assert parsers_end(body) == len(body)
    *pieces, last = cut(body, places)
    assert our_end([*pieces, last + NEXT]) == len(body)


@given(chunks, trailers, st.integers(0, 1000), st.sampled_from(b"\r\n 0a;_+-xX\x00\xff"), st.booleans())
def test_end_of_damaged_bodies(chunks, trailers, place, byte, insert):
    """Wherever the parser finds an end we find the same one, or refuse the trailer; what it refuses may end anywhere."""
    body = bytearray(encoded(chunks, trailers) + NEXT)
    place %= len(body)
    body[place : place + (not insert)] = bytes([byte])
    end = parsers_end(bytes(body))
    if end is not None:
        with suppress(ChunkedBodyError):
            assert our_end([bytes(body)]) == end


@given(chunks, trailers, st.lists(st.integers(0, 1000), max_size=6))
def test_parser_gets_the_chunks_and_no_trailer_fields(chunks, trailers, places):
    chunked_end, framing = ChunkedEnd(), b""
    *pieces, last = cut(encoded(chunks, trailers), places)
    for piece in [*pieces, last + NEXT]:
        assert not chunked_end.is_complete
        chunked_end.find(piece)
        framing += piece[: chunked_end.framing_bytes]
    assert chunked_end.is_complete
    assert framing + b"\r\n" == encoded(chunks, [])


@pytest.mark.parametrize("line", [b"no field", b": x", b"a b: c", b" folded: x", b"X: \x00", b"X: a\rb"])
def test_trailer_that_is_no_field(line):
    with pytest.raises(ChunkedBodyError, match="the trailer fields are malformed"):
        ChunkedEnd().find(b"0\r\n" + line + b"\r\n\r\n")


def test_bare_line_feed_ends_no_trailer():
    with pytest.raises(ChunkedBodyError, match="the trailer fields are malformed"):
        ChunkedEnd().find(b"0\r\nX: y\n\n")


def test_number_of_trailer_fields():
    chunked_end = ChunkedEnd()
    chunked_end.find(b"0\r\n" + (b"X: " + b"x" * 10_000 + b"\r\n") * 6)
    with pytest.raises(ChunkedBodyError, match="or exceed 65536 bytes"):
        chunked_end.find(b"X: " + b"x" * 10_000 + b"\r\n")


def test_byte_by_byte():
    body = encoded([(b"hello", "{:x}"), (b"\r\n0\r\n\r\n", "{:x}")], [b"X-T: 1"])
    assert our_end([*(bytes([byte]) for byte in body[:-1]), body[-1:] + NEXT]) == len(body)


def test_number_of_chunks():
    chunked_end = ChunkedEnd()
    chunked_end.find(b"1\r\nx\r\n" * MOST_CHUNKS)
    with pytest.raises(ChunkedBodyError, match="exceeds maximum of 65536 non-empty chunks"):
        chunked_end.find(b"1\r\n")


@pytest.mark.parametrize("line", [b"1;", b"0\r\nX: "])
def test_length_of_lines(line):
    chunked_end = ChunkedEnd()
    chunked_end.find(line + b"x" * (LONGEST_LINE_BYTES - 10))
    with pytest.raises(ChunkedBodyError, match="of more than 16384 bytes"):
        chunked_end.find(b"x" * 20)
