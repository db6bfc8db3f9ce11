"""The heads of successful answers to infer requests."""

from __future__ import annotations

from pybackend.frontend.compression import Coding

JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
CHUNKS_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
BINARY_CHUNKS_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
    b"content-length: %d\r\n\r\n"
)


def with_rare_fields(head: bytes, coding: Coding | None, traceparent: bytes) -> bytes:
    """A head with the fields that few answers have.

    Args:
        head: a complete head.
        coding: of the body; None if it is not compressed.
        traceparent: the answer's span; empty if it is not traced.
    """
    if coding is not None:
        head = b"%bcontent-encoding: %b\r\n\r\n" % (head[:-2], coding.value.encode())
    if traceparent:
        head = b"%btraceparent: %b\r\n\r\n" % (head[:-2], traceparent)
    return head
