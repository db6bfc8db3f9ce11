"""The fields in the head of an infer request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pybackend.frontend.traced import ContextFields


class HeadFields(NamedTuple):
    """The fields of an infer request that matter here; several fields of one name are joined by commas.

    Attributes:
        header_length: says how long the JSON part is; None if it is missing.
        encodings: how the body is compressed; empty if it is not.
        accepted: how the answer may be compressed; empty if the client does not say.
        context: the fields of the trace context; None if there are none.
    """

    header_length: bytes | None
    encodings: bytes
    accepted: bytes
    context: ContextFields | None


def read_fields(headers: Iterable[tuple[bytes, bytes]]) -> HeadFields:
    """Find the fields of a request."""
    header_length, encodings, accepted = None, [], []
    parent = state = b""
    for field, value in headers:
        size = len(field)  # tells most fields apart, at less cost than their names
        if size == 31 and field.lower() == b"inference-header-content-length":
            header_length = value
        elif size == 16 and field.lower() == b"content-encoding":
            encodings.append(value)
        elif size == 15 and field.lower() == b"accept-encoding":
            accepted.append(value)
        elif size == 11 and field.lower() == b"traceparent":
            parent = value
        elif size == 10 and field.lower() == b"tracestate":
            state = value
    context = (parent, state) if parent else None
    return HeadFields(header_length, b",".join(encodings), b",".join(accepted), context)
