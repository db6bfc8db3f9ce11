"""What the head of a call says."""

import pytest

from pybackend.frontend.grpc.head import CallHead
from tests.support import http2


def head(*repeated, **fields):
    server = http2.Server()
    usual = {":method": "POST", ":scheme": "http", ":path": "/a.B/C", ":authority": "x"}
    given = {"content-type": "application/grpc", **{name.replace("_", "-"): value for name, value in fields.items()}}
    server.receive(http2.headers(1, *usual.items(), *given.items(), *repeated))
    return CallHead(server.calls[1].head)


TIMES = {
    "1H": 3600,
    "2M": 120,
    "3S": 3,
    "40m": 0.04,
    "50u": 5e-5,
    "60n": 6e-8,
    "00000000S": 0,
    "99999999H": 359999996400,
}


@pytest.mark.parametrize(("value", "seconds"), TIMES.items())
def test_timeouts(value, seconds):
    found = head(grpc_timeout=value)
    assert found.timeout_s == pytest.approx(seconds)
    assert found.refusal is None


@pytest.mark.parametrize("value", ["", "1", "S", "-1S", "1s", "1.5S", "123456789S", "1S 2"])
def test_wrong_timeouts(value):
    found = head(grpc_timeout=value)
    assert found.timeout_s is None
    assert found.refusal.message.startswith("grpc-timeout '")


def test_metadata():
    found = head(triton_grpc_error="true")
    assert (found.path, found.encoding, found.timeout_s, found.refusal) == ("/a.B/C", b"identity", None, None)
    assert found.metadata[b"triton-grpc-error"] == b"true"


def test_unknown_encodings(snapshot):
    found = head(grpc_encoding="br")
    assert found.refusal.message.startswith("Unsupported compression type: br")
    assert found.refusal.message == snapshot


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_trace_contexts():
    assert head().context is None
    assert head(traceparent=PARENT).context == (PARENT.encode(), b"")
    states = head(("tracestate", "a=b"), ("tracestate", "c=d"), traceparent=PARENT)
    assert states.context == (PARENT.encode(), b"a=b,c=d")
    assert head(("traceparent", PARENT), traceparent=PARENT).context is None  # nobody knows which one is right
