"""What a request's header section must look like (RFC 9113 sections 8.2 and 8.3), and trailers."""

from collections.abc import Sequence
from typing import Final

from pybackend_http2.errors import ErrorCode, StreamError
from pybackend_http2.fields import Field

Fields = tuple[tuple[bytes, bytes], ...]
"""Names and values in the order in which they were received."""

_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})


class RequestHead:
    """The head of a request. Requests whose header blocks are the same bytes share one object."""

    __slots__ = ("authority", "content_length", "fields", "method", "path", "scheme", "takes_whole", "user_data")

    def __init__(self, pseudo: dict[bytes, bytes], fields: Fields, content_length: int | None) -> None:
        self.method = pseudo.get(b":method", b"")  # e.g. ``b"POST"``.
        self.scheme = pseudo.get(b":scheme", b"")  # ``b"http"`` or ``b"https"``; empty for CONNECT
        self.authority = pseudo.get(b":authority", b"")  # host and port, empty if the request has none
        self.path = pseudo.get(b":path", b"")  # path and query; empty for CONNECT
        self.fields = fields  # the other fields
        self.content_length = content_length  # the announced length of the body, or None
        # a place for the reader of the head, which this package never touches. A head is shared by requests that repeat
        # it, so a reading of it that depends on nothing else need be made only once. It is dropped with the head.
        self.user_data: object = None
        # requests with this head, if they lie whole in what was received, are offered to
        # ``ConnectionReceiver.on_whole_request``. Its receiver sets it, for a head without ``content_length``; it is
        # reset once a request was declined.
        self.takes_whole = False

    def __repr__(self) -> str:
        return f"RequestHead({self.method!r} {self.path!r}, {len(self.fields)} fields)"


def read_request(section: Sequence[Field]) -> RequestHead:
    """Check a request's header section; a StreamError if it is malformed."""
    pseudo: dict[bytes, bytes] = {}
    pairs: list[tuple[bytes, bytes]] = []
    others: list[Field] = []
    for field in section:
        if field.is_plain:
            pairs.append(field.pair)
        elif field.is_pseudo and not pairs:
            _add_pseudo(pseudo, field)
        else:
            pairs.append(field.pair)
            others.append(field)
    _check_pseudo(pseudo)
    length = None
    for field in others:
        length = _judge(field, pseudo, length)
    return RequestHead(pseudo, tuple(pairs), length)


def read_trailers(section: Sequence[Field]) -> Fields:
    """Check the fields that follow a request's body; a StreamError if they are malformed."""
    for field in section:
        if not field.is_plain and field.fault is not None:
            raise malformed(*field.fault)
    return tuple(field.pair for field in section)


def malformed(section: str, message: str) -> StreamError:
    """Return the error for a malformed request (RFC 9113 section 8.1.1)."""
    return StreamError(ErrorCode.PROTOCOL_ERROR, section, message)


def _check_pseudo(pseudo: dict[bytes, bytes]) -> None:
    method = pseudo.get(b":method")
    if not method:
        raise malformed("8.3.1", "a request has no :method")
    if method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo or not pseudo.get(b":authority"):
            raise malformed("8.5", "CONNECT needs :authority, and neither :scheme nor :path")
        return
    if not pseudo.get(b":scheme"):
        raise malformed("8.3.1", "a request has no :scheme")
    path = pseudo.get(b":path")
    if not path:
        raise malformed("8.3.1", "a request has no :path")
    if path[:1] != b"/" and not (path == b"*" and method == b"OPTIONS"):
        raise malformed("8.3.1", f":path {path[:80]!r} does not begin with a slash")
    if b"@" in pseudo.get(b":authority", b""):
        raise malformed("8.3.1", ":authority contains user information")


def _add_pseudo(pseudo: dict[bytes, bytes], field: Field) -> None:
    name, value = field.pair
    if name not in _PSEUDO:
        raise malformed("8.3.1", f"a request has the pseudo-header field {name[:80]!r}")
    if name in pseudo:
        raise malformed("8.3.1", f"pseudo-header field {name[:80]!r} is repeated")
    if field.pseudo_fault is not None:
        raise malformed(*field.pseudo_fault)
    pseudo[name] = value


def _judge(field: Field, pseudo: dict[bytes, bytes], length: int | None) -> int | None:
    """Check a field that is not plain; returns the body's length as far as it is known."""
    name, value = field.pair
    if field.fault is not None:
        raise malformed(*field.fault)
    if name == b"content-length":
        if not value.isdigit() or len(value) > 18:
            raise malformed("8.1.1", f"content-length {value[:80]!r} is not a length")
        if length is not None and length != int(value):
            raise malformed("8.1.1", "two content-length fields contradict each other")
        return int(value)
    authority = pseudo.get(b":authority")
    if authority is not None and name == b"host" and value.lower() != authority.lower():
        raise malformed("8.3.1", f"host {value[:80]!r} is not :authority {authority[:80]!r}")
    return length
