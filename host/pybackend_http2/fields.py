"""Header fields, and the rules for them that hold in both directions (RFC 9113 section 8.2)."""

import re
from enum import Enum
from typing import Final

FIELD_OVERHEAD_BYTES: Final = 32
"""A field counts as its name, its value and this (RFC 9113 section 6.5.2)."""

NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
"""A token in lower case."""

VALUE: Final = re.compile(rb"(?![ \t])[^\x00\r\n]*+(?<![ \t])\Z")
"""No NUL, CR or LF, and no blank at either end."""

_PADDED_VALUE: Final = re.compile(rb"[^\x00\r\n]*+\Z")

CONNECTION_SPECIFIC: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)

_STATIC: Final = b"""
    :authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https :status=200
    :status=204 :status=206 :status=304 :status=400 :status=404 :status=500 accept-charset
    accept-encoding=gzip,_deflate accept-language accept-ranges accept access-control-allow-origin age allow
    authorization cache-control content-disposition content-encoding content-language content-length
    content-location content-range content-type cookie date etag expect expires from host if-match
    if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards
    proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie
    strict-transport-security transfer-encoding user-agent vary via www-authenticate
"""

STATIC_TABLE: Final = tuple(
    (name, value.replace(b"_", b" ")) for name, _, value in (entry.partition(b"=") for entry in _STATIC.split())
)
"""Names and values that every peer knows (RFC 7541 appendix A); the first one has index 1."""

DEFAULT_TABLE_BYTES: Final = 4096
"""The size of the dynamic table unless SETTINGS say otherwise."""

_JUDGED: Final = frozenset({b"host", b"content-length"})

OBEYED: Final = CONNECTION_SPECIFIC | _JUDGED | {b"te"}
"""Names of ordinary fields whose values matter to HTTP/2."""

NO_MARK: Final = b"\0"
"""The use of a field about which nothing is known."""


class Use(Enum):
    """The use that the package's user has for the fields of a name."""

    READS = "reads"
    """It looks at the value, which recurs."""
    READS_APART = "reads apart"
    """It looks at the value, which varies: see ``Stream.fields_apart``."""
    IGNORES = "ignores"


Fault = tuple[str, str]
"""The section of RFC 9113 that a field breaks, and how."""


class Field:
    """A received field.

    It is checked once, when it is received as text; repetitions are indexes into a table of fields.
    """

    __slots__ = ("_may_be_padded", "is_plain", "is_pseudo", "mark", "pair", "pseudo_fault", "size")

    def __init__(self, name: bytes, value: bytes, *, may_be_padded: bool = False) -> None:
        # blanks at the ends of its value are no fault, unless it is a pseudo-header field
        self._may_be_padded = may_be_padded
        self.mark = NO_MARK  # a byte that stands for it in the keys of known heads (:mod:`known_heads`)
        self.pair = (name, value)  # name and value
        # its size in header tables and header sections (RFC 7541 section 4.1)
        self.size = len(name) + len(value) + FIELD_OVERHEAD_BYTES
        self.is_pseudo = name[:1] == b":"  # its name begins with a colon
        self.pseudo_fault: Fault | None = None  # the rule that its value breaks in a pseudo-header field
        if self.is_pseudo:
            self.is_plain = False  # it is valid among ordinary fields, and no other field matters to it
            if not VALUE.match(value):
                text = f"pseudo-header field {name[:80]!r} has NUL, CR, LF or outer blanks in its value"
                self.pseudo_fault = ("8.2.1", text)
        else:
            self.is_plain = name not in _JUDGED and self.fault is None

    @property
    def fault(self) -> Fault | None:
        """The rule for ordinary fields that it breaks."""
        name, value = self.pair
        if not NAME.match(name):
            if name[:1] == b":":
                return "8.3", f"pseudo-header field {name[:80]!r} follows ordinary fields or is among trailers"
            return "8.2.1", f"field name {name[:80]!r} is empty, has capitals or forbidden characters"
        if not (_PADDED_VALUE if self._may_be_padded else VALUE).match(value):
            return "8.2.1", f"field {name[:80]!r} has NUL, CR, LF or outer blanks in its value"
        if name in CONNECTION_SPECIFIC:
            return "8.2.2", f"field {name[:80]!r} is about a connection of HTTP/1.1"
        if name == b"te" and value != b"trailers":
            return "8.2.2", f"field te is {value[:80]!r}, and only 'trailers' is allowed"
        return None


def plain_field(name: bytes, value: bytes) -> Field:
    """A plain field whose name and value were checked. Its size and mark are the caller's to set."""
    field = Field.__new__(Field)
    field.pair = (name, value)
    field.is_plain = True
    field.is_pseudo = False
    field.pseudo_fault = None
    return field
