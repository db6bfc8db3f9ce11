"""The fields in the head of an infer request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.traced import ContextFields, trace_context

_SIZES = frozenset(
    map(len, ("inference-header-content-length", "content-encoding", "accept-encoding", "traceparent", "tracestate"))
)


class HeadFields(NamedTuple):
    """The fields of an infer request that matter here.

    Attributes:
        header_length: says how long the JSON part is; None if it is missing.
        encodings: how the body is compressed, several fields joined by commas; empty if it is not.
        accepted: how the answer may be compressed, likewise; empty if the client does not say.
        context: the fields of the trace context; None if there are none.
        repeats_length: there are several fields that say how long the JSON part is.
    """

    header_length: bytes | None
    encodings: bytes
    accepted: bytes
    context: ContextFields | None
    repeats_length: bool

    def check(self) -> None:
        """Refuse a request whose parts nobody can tell apart.

        Raises:
            InferenceError: INVALID_ARG; it has several lengths of its JSON part.
        """
        if self.repeats_length:
            raise InferenceError(
                "the request has several fields Inference-Header-Content-Length: send one", ErrorCode.INVALID_ARG
            )


def read_fields(headers: Iterable[tuple[bytes, bytes]]) -> HeadFields:
    """Find the fields of a request."""
    lengths: list[bytes] = []
    encodings: list[bytes] = []
    accepted: list[bytes] = []
    parents: list[bytes] = []
    states: list[bytes] = []
    for field, value in headers:
        size = len(field)  # tells most fields apart, at less cost than their names
        if size not in _SIZES:
            continue
        if size == 31 and field.lower() == b"inference-header-content-length":
            lengths.append(value)
        elif size == 16 and field.lower() == b"content-encoding":
            encodings.append(value)
        elif size == 15 and field.lower() == b"accept-encoding":
            accepted.append(value)
        elif size == 11 and field.lower() == b"traceparent":
            parents.append(value)
        elif size == 10 and field.lower() == b"tracestate":
            states.append(value)
    return HeadFields(
        lengths[0] if lengths else None,
        b",".join(encodings),
        b",".join(accepted),
        trace_context(parents, states) if parents else None,
        len(lengths) > 1,
    )
