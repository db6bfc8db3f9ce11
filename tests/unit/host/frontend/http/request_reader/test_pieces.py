"""Requests found in a stream of bytes, however it is cut."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.frontend.http.request_reader import MAX_HEAD_BYTES, MalformedRequestError, RequestReader

REQUESTS = (
    (b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", (b"GET", b"/v2"), b""),
    (b"\r\n\r\nPOST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", (b"POST", b"/a?b=c"), b"hello"),
    (
        b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nConnection: close\r\n\r\n",
        (b"POST", b"/c"),
        b"abcde",
    ),
    (
        b"POST /u HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi",
        (b"POST", b"/u"),
        b"hi",
    ),
    (
        b"POST /v HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nz\r\n0\r\n\r\n",
        (b"POST", b"/v"),
        b"z",
    ),
)


def read(pieces):
    """The requests in pieces of a stream: method and target, body."""
    reader, found, body = RequestReader(), [], b""
    for piece in pieces:
        data = piece
        while data:
            if reader.head is None:
                data = reader.read_head(data)
            else:
                read, data = reader.read_body(data)
                body += read
            if reader.head is not None and reader.is_complete:
                assert reader.head.keep_alive
                found.append(((reader.head.method, reader.head.target), body))
                reader.begin()
                body = b""
    return found


@given(st.lists(st.sampled_from(REQUESTS), max_size=6), st.data())
def test_requests_are_found_wherever_the_stream_is_cut(requests, data):
    stream = b"".join(each[0] for each in requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(pieces) == [each[1:] for each in requests]


def test_a_head_in_one_piece_is_kept_as_it_was():
    head = REQUESTS[0][0]
    reader = RequestReader()
    assert reader.read_head(head + b"next") == b"next"
    assert reader.head.raw == head
    reader.begin()
    reader.read_head(head[:7])
    reader.read_head(head[7:])
    assert reader.head.raw == b""


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (b"HTTP/1.1\r\n", True),
        (b"HTTP/1.1\r\nConnection: close\r\n", False),
        (b"HTTP/1.0\r\n", False),
        (b"HTTP/1.0\r\nConnection: keep-alive\r\n", True),
    ],
)
@pytest.mark.parametrize("body", [b"", b"Content-Length: 3\r\n"], ids=["", "body"])
def test_whether_a_client_goes_on(line, kept, body):
    reader = RequestReader()
    reader.read_head(b"POST / " + line + b"Host: x\r\n" + body + b"\r\n")
    assert reader.head.keep_alive is kept


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    ],
)
def test_heads_that_are_refused(data, status):
    with pytest.raises(MalformedRequestError) as caught:
        RequestReader().read_head(data)
    assert caught.value.status == status


@pytest.mark.parametrize(
    "fields", [b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked\r\nContent-Length: 3", b"Content-Length: x"]
)
@pytest.mark.parametrize("cut", [0, 30])
def test_a_reader_ends_after_any_head(fields, cut):
    """Some heads are refused when the parser has seen all of them."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\n"
    reader = RequestReader()
    with suppress(MalformedRequestError):
        reader.read_head(head[:cut])
        reader.read_head(head[cut:])
    reader.close()
    reader.close()


def test_chunks_that_are_refused():
    reader = RequestReader()
    reader.read_head(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(MalformedRequestError, match="as RFC 9112 defines it"):
        reader.read_body(b"zz\r\nabc\r\n")
