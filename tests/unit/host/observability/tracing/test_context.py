"""W3C trace context: what is read, and what is written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.observability.tracing.context import TraceContext, new_context, read_context

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_is_read_and_written():
    context = read_context(b" " + PARENT + b" ", b"a=b,c=d")
    assert context == TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True, "a=b,c=d")
    assert context.traceparent.encode() == PARENT
    assert json.loads(context.carrier) == {"traceparent": PARENT.decode(), "tracestate": "a=b,c=d"}


def test_a_later_version_may_say_more():
    assert read_context(b"01" + PARENT[2:] + b"-more").sampled


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        b"",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + b"-more",
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
    ],
)
def test_others_are_none(wrong):
    assert read_context(wrong) is None


def test_a_state_that_could_not_be_a_field_is_dropped():
    assert read_context(PARENT, b"a=\nb").state == ""
    assert read_context(PARENT, b"a" * 513).state == ""


@given(st.binary(max_size=80))
def test_any_bytes_can_be_read(data):
    read_context(data, data)


def test_spans_of_a_trace_differ():
    first = new_context()
    second = first.child()
    assert (first.trace_id, first.sampled) == (second.trace_id, second.sampled)
    assert first.span_id != second.span_id
