"""A bare TCP connection that speaks HTTP byte by byte, for what no HTTP library sends."""

import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.server import DEADLINE_S, Reply


class Connection:
    """One client connection; replies are read with a parser of its own, which is stricter than a browser's."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None, deadline_s: float = DEADLINE_S) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(deadline_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect(("127.0.0.1", port))
        self._received = bytearray()

    def send(self, data: bytes | memoryview) -> None:
        self.socket.sendall(data)

    def reply(self, *, to: str = "GET") -> Reply:
        """The next reply; an interim one (100) is a reply of its own.

        Args:
            to: method that is answered: a reply to HEAD has no body.
        """
        head = self._until(b"\r\n\r\n").decode("latin-1")
        status_line, *lines = head[:-4].split("\r\n")
        version, status = status_line.split(" ", 2)[:2]
        assert version == "HTTP/1.1", head
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, f"{name} is there twice: {head}"
            headers[name.lower()] = value.strip()
        if to == "HEAD" or status in {"100", "204", "304"}:
            return Reply(int(status), headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Reply(int(status), headers, self._chunks())
        return Reply(int(status), headers, self.exactly(int(headers["content-length"])))

    def replies(self, count: int) -> list[Reply]:
        """So many replies, one after the other."""
        return [self.reply() for _ in range(count)]

    def exactly(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        self.wait_for_bytes(count)
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def wait_for_bytes(self, count: int) -> None:
        """Wait until so much of a reply is here; it stays there to be read."""
        while len(self._received) < count:
            self._receive()

    def begins_with(self, data: bytes) -> bool:
        """True if the next bytes, which stay there to be read, are these."""
        self.wait_for_bytes(len(data))
        return self._received.startswith(data)

    def at_end(self) -> bool:
        """True if the server has closed the connection and sent nothing more; waits for either."""
        if self._received:
            return False
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def reset(self) -> None:
        """Go away without a word: the server gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def close(self) -> None:
        """End the connection in order."""
        self.socket.close()

    def _until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._receive()
        return self.exactly(self._received.index(end) + len(end))

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := int(self._until(b"\r\n"), 16):
            body += self.exactly(size)
            assert self.exactly(2) == b"\r\n"
        assert self.exactly(2) == b"\r\n"
        return bytes(body)

    def _receive(self) -> None:
        data = self.socket.recv(1 << 18)
        assert data, f"the server closed the connection after {bytes(self._received[:200])!r}"
        self._received += data


@contextmanager
def connected(port: int, **options: Any) -> Iterator[Connection]:
    connection = Connection(port, **options)
    try:
        yield connection
    finally:
        connection.close()


def head(method: str, path: str, headers: Mapping[str, object] | None = None) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: test",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(path: str, body: bytes, headers: Mapping[str, object] | None = None) -> bytes:
    """A whole POST with a Content-Length."""
    return head("POST", path, {"Content-Length": len(body), **(headers or {})}) + body


def chunked(pieces: Iterable[bytes]) -> bytes:
    """Pieces in chunked transfer encoding, with the end."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"


def post_chunked(path: str, pieces: Iterable[bytes], headers: Mapping[str, object] | None = None) -> bytes:
    return head("POST", path, {"Transfer-Encoding": "chunked", **(headers or {})}) + chunked(pieces)


def binary_body(document: Mapping[str, Any], *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    """A body of JSON and binary tensors, and the header that says where the JSON ends."""
    text = json.dumps(document).encode()
    return b"".join((text, *blobs)), {"Inference-Header-Content-Length": str(len(text))}
