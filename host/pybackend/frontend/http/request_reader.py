"""Splits the bytes of a connection into HTTP/1.1 requests: bytes in, heads and pieces of bodies out, no input or output.

httptools parses heads and chunked bodies. A body whose length the head gives is only counted. The parser sees one request at a
time, so it never acts on bytes that belong to the next one.
"""

import re
from collections.abc import Iterable

import httptools

MAX_HEAD_BYTES = 64 * 1024

_END_OF_HEAD = b"\r\n\r\n"

_HOST = re.compile(rb"[ \t]*([A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+(%25[A-Za-z0-9._~-]+)?\])(:[0-9]*)?[ \t]*")
"""``uri-host [ ":" port ]`` of RFC 9110; empty for targets without an authority."""


_FIELDS = frozenset({b"host", b"origin", b"content-length", b"transfer-encoding", b"expect"})


def values_of(headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]) -> dict[bytes, list[bytes]]:
    """The values of these fields, by their names in lower case."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in names:
            found.setdefault(lower, []).append(value)
    return found


class MalformedRequestError(Exception):
    """The client's bytes are no request that this server reads; the connection must end with this answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestHead:
    """The head of a request.

    Attributes:
        target: as in the request line.
        version: ``1.0`` or ``1.1``.
        headers: names as they were sent, and values.
        content_length: size of the body, 0 if it is chunked.
        keep_alive: the client wants to send further requests.
        expects_continue: the client waits for ``100 Continue`` before it sends the body.
        host: the field Host; empty if there is none.
        origin: of the web page that calls; None if the request names none, or several.
        raw: the head's bytes, if they arrived in one piece; else empty.
    """

    def __init__(self) -> None:
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.is_complete = self.keep_alive = False
        self.method = self.target = self.raw = b""
        self.version = ""
        self.headers: list[tuple[bytes, bytes]] = []

    def feed(self, data: bytes) -> None:
        """Parse some bytes, none of which follow the head."""
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an offer that the server ignores: it answers the request
        except httptools.HttpParserError:
            raise _not_http() from None

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        self.close()
        self.method, self.version = parser.get_method(), parser.get_http_version()
        self.keep_alive = parser.should_keep_alive()
        self.is_complete = True

    def close(self) -> None:
        """Let go of the parser: they refer to each other."""
        self._parser = None

    def check(self, raw: bytes) -> None:
        """Read the fields that say how the request goes on, and refuse what servers could understand differently.

        Raises:
            MalformedRequestError: it is not HTTP/1.1 or HTTP/1.0 as this server reads it.
        """
        if b"#" in self.target:
            # Readers with and without the fragment would find different routes.
            raise _invalid("its target has a fragment, which is the client's own matter: write # as %23 in a name")
        self.raw = raw
        found = values_of(self.headers, _FIELDS)
        hosts = found.get(b"host", [])
        codings: list[bytes] = []
        for value in found.get(b"transfer-encoding", ()):
            codings += [coding.strip().lower() for coding in value.split(b",")]
        # The parser has validated the length; only leading zeros make it longer than 20 digits.
        self.content_length = int(found[b"content-length"][-1].strip()[-20:]) if b"content-length" in found else 0
        self.expects_continue = b"100-continue" in map(bytes.lower, found.get(b"expect", ()))
        if self.version not in {"1.1", "1.0"}:
            raise _invalid(f"this server speaks HTTP/1.1, and not HTTP/{self.version}", 505)
        if len(hosts) != 1 and (hosts or self.version == "1.1"):
            raise _invalid(f"it has {len(hosts)} fields Host, and needs one (RFC 9112, section 3.2)")
        if hosts and not _HOST.fullmatch(hosts[0]):
            raise _invalid("its field Host is no name or address with an optional port (RFC 9112, section 3.2)")
        self.host = hosts[0].strip(b" \t") if hosts else b""
        origins = found.get(b"origin", ())
        self.origin = origins[0].strip(b" \t") if len(origins) == 1 else None
        self.chunked = bool(codings)
        if not codings:
            return
        if self.version != "1.1":
            raise _invalid("Transfer-Encoding needs HTTP/1.1 (RFC 9112, section 6.1)")
        if codings[-1] != b"chunked" or codings.count(b"chunked") > 1:
            raise _invalid("the last transfer coding must be chunked, which must come once (RFC 9112, section 6.3)")
        if len(codings) > 1:
            raise _invalid(
                "the only transfer coding of this server is chunked. Compress a body with Content-Encoding instead", 501
            )


def path_of(target: bytes) -> bytes:
    """The path of a target, as it is written; a MalformedRequestError if it has none."""
    try:
        path: bytes | None = httptools.parse_url(target).path
    except httptools.HttpParserInvalidURLError:
        path = None
    if path is None:
        raise _invalid("its target is not a path")
    return path


MOST_CHUNKS = 65536
LONGEST_LINE_BYTES = 16 * 1024
"""Limit on a chunk's extensions and on one trailer field. The server uses neither."""

MOST_TRAILER_BYTES = 64 * 1024
"""Limit on all trailer fields together, the same as for a head."""

_TRAILER_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r")


class ChunkedBodyError(Exception):
    """A body with too many chunks or too long lines between them, or with malformed trailer fields."""


class ChunkedEnd:
    """Follows the framing of one body. It validates nothing else: the parser refuses malformed chunks."""

    def __init__(self) -> None:
        self.framing_bytes = 0  # how many bytes of the last piece precede the trailer fields, and belong to the parser
        self.is_complete = False  # the body has ended, including its trailer fields
        self._line = b""
        self._data_left = 0
        self._chunk_count = 0
        self._in_trailer = False
        self._trailer_bytes = 0

    def find(self, data: bytes) -> int:
        """How many of these bytes belong to the body: all, or fewer if it ends before.

        Raises:
            ChunkedBodyError: the body exceeds a limit or is malformed.
        """
        at, size = 0, len(data)
        self.framing_bytes = 0 if self._in_trailer else size
        while at < size:
            if self._data_left:
                step = min(self._data_left, size - at)
                self._data_left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            self._line += data[at:] if end < 0 else data[at:end]
            if len(self._line) > LONGEST_LINE_BYTES:
                raise ChunkedBodyError(
                    f"Chunked request body has a chunk extension or a trailer of more than {LONGEST_LINE_BYTES} bytes."
                )
            if end < 0:
                break
            at = end + 1
            line, self._line = self._line, b""
            if self._in_trailer:
                if self._ends_with_field(line):
                    self.is_complete = True
                    return at
            elif self._is_last_chunk(line):
                self._in_trailer, self.framing_bytes = True, at
        return size

    def _ends_with_field(self, line: bytes) -> bool:
        """True for the empty line after the trailer fields."""
        if line == b"\r":
            return True
        self._trailer_bytes += len(line)
        if _TRAILER_FIELD.fullmatch(line) is None or self._trailer_bytes > MOST_TRAILER_BYTES:
            raise ChunkedBodyError(
                "Invalid HTTP request received: the trailer fields are malformed (RFC 9112), or exceed "
                f"{MOST_TRAILER_BYTES} bytes"
            )
        return False

    def _is_last_chunk(self, line: bytes) -> bool:
        """True if the current complete line announces the last chunk."""
        try:
            chunk_bytes = int(line.removesuffix(b"\r").partition(b";")[0], 16)
        except ValueError:
            return False  # the parser refuses it
        if chunk_bytes <= 0:
            return True
        self._data_left = chunk_bytes + 2
        self._chunk_count += 1
        if self._chunk_count > MOST_CHUNKS:
            raise ChunkedBodyError(
                f"Chunked request body exceeds maximum of {MOST_CHUNKS} non-empty chunks. Send fewer or larger HTTP "
                "chunks."
            )
        return False


class _Chunks:
    """A chunked body."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._framing = ChunkedEnd()
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    @property
    def is_complete(self) -> bool:
        return self._framing.is_complete

    def read(self, data: bytes) -> tuple[bytes, bytes]:
        """The body's bytes among these, and the bytes after the body."""
        framing = self._framing
        end = framing.find(data)
        self._parser.feed_data(data if framing.framing_bytes == len(data) else data[: framing.framing_bytes])
        if framing.is_complete:
            self._parser.feed_data(b"\r\n")
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), data[end:]


class RequestReader:
    """The requests of one connection, one after the other.

    Attributes:
        head: of the current request; None until it is complete.
        body_left: bytes of the body that have not arrived, if its length is known. A caller that knows the head sets
            it.
        head_bytes: bytes of the current head that have arrived.
    """

    __slots__ = ("_arriving", "_chunks", "_seen", "body_left", "head", "head_bytes")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Expect the next request."""
        self.head: RequestHead | None = None
        self.head_bytes = 0
        self.body_left = 0
        self._seen = b""
        self._arriving: RequestHead | None = None
        self._chunks: _Chunks | None = None

    def close(self) -> None:
        """The connection has ended, perhaps in the middle of a head."""
        if self._arriving is not None:
            self._arriving.close()

    @property
    def is_chunked(self) -> bool:
        return self._chunks is not None

    @property
    def is_complete(self) -> bool:
        """The current request has arrived."""
        return not self.body_left if self._chunks is None else self._chunks.is_complete

    def read_head(self, data: bytes) -> bytes:
        """Read up to the end of the head; returns the bytes after it.

        Raises:
            MalformedRequestError: these bytes are not HTTP/1.1, or the head is too large.
        """
        if not self.head_bytes:
            data = data.lstrip(b"\r\n")  # empty lines before a request line are legal
        probe = self._seen + data if self._seen else data
        end = probe.find(_END_OF_HEAD)
        cut = len(data) if end < 0 else end + len(_END_OF_HEAD) - len(self._seen)
        self.head_bytes += cut
        if self.head_bytes > MAX_HEAD_BYTES:
            raise MalformedRequestError(431, f"the request's head exceeds {MAX_HEAD_BYTES} bytes")
        head = data if cut == len(data) else data[:cut]
        arriving = self._arriving
        if arriving is None:
            arriving = self._arriving = RequestHead()
        arriving.feed(head)
        self._seen = probe[-3:] if end < 0 else b""
        if arriving.is_complete:
            arriving.check(head if self.head_bytes == cut else b"")
            self._arriving, self.head = None, arriving
            self.body_left = 0 if arriving.chunked else arriving.content_length
            self._chunks = _Chunks() if arriving.chunked else None
        return data[cut:]

    def read_body(self, data: bytes) -> tuple[bytes, bytes]:
        """The body's bytes among these, and the bytes after the body.

        Raises:
            MalformedRequestError: the chunks are malformed.
        """
        if self._chunks is not None:
            try:
                return self._chunks.read(data)
            except ChunkedBodyError as error:
                raise MalformedRequestError(400, str(error)) from None
            except httptools.HttpParserError:
                raise _not_http() from None
        if len(data) <= self.body_left:
            self.body_left -= len(data)
            return data, b""
        piece, rest = data[: self.body_left], data[self.body_left :]
        self.body_left = 0
        return piece, rest


def _invalid(reason: str, status: int = 400) -> MalformedRequestError:
    return MalformedRequestError(status, f"Invalid HTTP request received: {reason}")


def _not_http() -> MalformedRequestError:
    return _invalid("it is not HTTP/1.1 as RFC 9112 defines it")
