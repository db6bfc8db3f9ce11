"""W3C trace context: the fields ``traceparent`` and ``tracestate`` that carry a trace from one service to the next."""

from __future__ import annotations

import json
import re
from random import SystemRandom
from typing import NamedTuple

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_MOST_STATE = 512

_random = SystemRandom()


class TraceContext(NamedTuple):
    """A span, as seen by the services that continue its trace.

    ``sampled`` says that the sender records the trace; ``state`` has the senders' own notes.
    """

    trace_id: int
    span_id: int
    sampled: bool = True
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    @property
    def carrier(self) -> str:
        """The fields as a JSON object, as models get them."""
        fields = {"traceparent": self.traceparent}
        if self.state:
            fields["tracestate"] = self.state
        return json.dumps(fields)

    def child(self) -> TraceContext:
        return self._replace(span_id=new_span_id())


def read_context(parent: bytes | None, state: bytes | None = None) -> TraceContext | None:
    """The context in two fields; None if ``parent`` is missing or malformed."""
    found = None if parent is None else _PARENT.fullmatch(parent.decode("latin-1").strip())
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5] is not None):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    text = "" if state is None or len(state) > _MOST_STATE else state.decode("latin-1").strip()
    return TraceContext(trace_id, span_id, bool(int(found[4], 16) & _SAMPLED), text if text.isprintable() else "")


def new_context() -> TraceContext:
    """The first span of a new trace."""
    return TraceContext(_random.getrandbits(128) or 1, new_span_id())


def new_span_id() -> int:
    """An id that no other span has."""
    return _random.getrandbits(64) or 1
