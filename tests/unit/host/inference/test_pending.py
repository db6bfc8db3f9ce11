"""The handle by which a request is cancelled, paused and resumed, and the path of its responses."""

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest, QueuedBytes, RequestHolder, guarded, to_sender
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.scheduler.ordered_delivery import DeliveryLine, OrderedDelivery


class Holder:
    """Notes what it is told."""

    def __init__(self):
        self.told = []

    def cancel(self, pending):
        self.told.append("cancel")

    def flow(self, pending, *, paused):
        self.told.append("pause" if paused else "resume")

    def is_running(self, pending):
        return False

    def blockers(self, pending):
        return ()


@pytest.fixture
def queue():
    return Holder()


@pytest.fixture
def pending(queue):
    return PendingRequest(InferenceRequest("m"), lambda response: None, queue)


def test_cancelled_once(pending, queue):
    pending.cancel()
    pending.cancel()
    assert queue.told == ["cancel"]


def test_a_pause_is_said_once_and_ended_once(pending, queue):
    pending.resume()
    pending.pause()
    pending.pause()
    pending.resume()
    pending.resume()
    assert queue.told == ["pause", "resume"]


@pytest.mark.parametrize("over", ["answered", "cancelled"])
def test_a_request_that_is_over_is_not_paused(over, pending, queue):
    setattr(pending, over, True)
    pending.pause()
    assert not pending.paused
    pending.cancel()
    assert queue.told == []


def test_whoever_holds_it_is_told(pending, queue):
    instance = Holder()
    assert pending.is_waiting
    pending.taken_by, pending.execution = instance, 3
    assert not pending.is_waiting
    pending.pause()
    pending.wait()
    assert pending.is_waiting
    assert pending.execution == 0
    pending.cancel()
    assert (instance.told, queue.told) == (["pause"], ["cancel"])


def request_of(nbytes, receive):
    request = InferenceRequest("m", inputs=[InputTensor("IN", "UINT8", (nbytes,), bytes(nbytes))])
    return PendingRequest(request, receive, RequestHolder())


def response_of(released, *, final=True):
    response = InferenceResponse("m", "1", final=final)
    response.on_release = lambda: released.append(response)
    return response


def fail(_response):
    raise ValueError("the receiver's own fault")


def test_the_path_of_a_model_without_stages_is_one_call():
    assert guarded(to_sender) is to_sender


def test_a_receiver_that_fails_keeps_no_memory(caplog):
    released = []
    response = response_of(released)
    to_sender(request_of(1, fail), response)
    assert released == [response]
    assert "the receiver of a response of model 'm' failed" in caplog.text


def test_a_stage_that_fails_keeps_no_memory(caplog):
    def stage(_pending, _response):
        raise KeyError("a fault of the server's")

    released = []
    response = response_of(released)
    guarded(stage)(request_of(1, pytest.fail), response)
    assert released == [response]
    assert "a response of model 'm' was lost on its way" in caplog.text


def test_stages_compose():
    """Bytes count until the order lets the final response go, whoever was ready first, and although one receiver fails."""
    queued = QueuedBytes(100)
    delivery = OrderedDelivery(queued.on_response)
    path, line = guarded(delivery.on_response), DeliveryLine(delivery)
    seen, released = [], []

    def receive(response):
        seen.append((response, queued.used_bytes))

    first, failing, last = request_of(50, receive), request_of(30, fail), request_of(20, receive)
    for pending in (first, failing, last):
        queued.add(pending, queued.weigh(pending.request))
        line.add(pending)
    with pytest.raises(InferenceError) as refused:
        queued.weigh(request_of(1, pytest.fail).request)
    assert refused.value.code is ErrorCode.UNAVAILABLE
    answers = [response_of(released, final=False), response_of(released), response_of(released), response_of(released)]
    path(last, answers[3])
    path(failing, answers[2])
    path(first, answers[0])
    assert seen == [(answers[0], 100)]
    path(first, answers[1])
    assert seen == [(answers[0], 100), (answers[1], 50), (answers[3], 0)]
    assert released == [answers[2]]


def test_a_request_that_was_never_weighed_takes_nothing_off():
    """Those that models ask each other pass the same stage."""
    queued = QueuedBytes(100)
    counted = request_of(10, lambda _response: None)
    queued.add(counted, queued.weigh(counted.request))
    queued.on_response(request_of(10, lambda _response: None), InferenceResponse("m", "1"))
    assert queued.used_bytes == 10
    queued.on_response(counted, InferenceResponse("m", "1"))
    queued.on_response(counted, InferenceResponse("m", "1"))
    assert queued.used_bytes == 0
