"""Rules for header fields that hold in both directions (RFC 9113 section 8.2)."""

from __future__ import annotations

import re
from typing import Final

FIELD_OVERHEAD_BYTES: Final = 32
"""A field counts as its name, its value and this (RFC 9113 section 6.5.2)."""

NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
"""A token in lower case."""

VALUE: Final = re.compile(rb"(?![ \t])[^\x00\r\n]*+(?<![ \t])\Z")
"""No NUL, CR or LF, and no blank at either end."""

CONNECTION_SPECIFIC: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
