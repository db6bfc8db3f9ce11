"""The bound on bytes of requests that are not answered yet."""

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest, QueuedBytes, RequestHolder
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor


def request(*sizes_bytes):
    return InferenceRequest("m", id="7", inputs=[InputTensor("A", "UINT8", (n,), bytes(n)) for n in sizes_bytes])


def pending(on_response=print):
    return PendingRequest(request(), on_response, RequestHolder())


def test_bytes_count_until_the_last_response():
    queued, seen = QueuedBytes(100), []
    nbytes = queued.weigh(request(60, 40))
    assert queued.used_bytes == 0  # the engine may still refuse it
    waiting = pending(seen.append)
    queued.add(waiting, nbytes)
    assert queued.used_bytes == 100
    first, last = InferenceResponse("m", "1", final=False), InferenceResponse("m", "1")
    queued.on_response(waiting, first)
    assert queued.used_bytes == 100
    queued.on_response(waiting, last)
    assert queued.used_bytes == 0
    assert seen == [first, last]


def test_one_byte_too_many_is_refused():
    queued = QueuedBytes(100)
    queued.add(pending(), 60)
    assert queued.weigh(request(40)) == 40
    with pytest.raises(
        InferenceError, match=r"^\[request id: 7\] the server is overloaded: it holds 60 bytes"
    ) as caught:
        queued.weigh(request(41))
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "--max-queued-bytes" in str(caught.value)
    assert queued.used_bytes == 60
    assert queued.weigh(request()) == 0
