"""What a response sender may send, and when; and what clients read when it is dropped."""

import gc
import threading
import weakref

import pytest

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_sender import DROPPED, InferenceResponseSender, ResponseStream

CLOSED = r"^Unable to send response\. Response sender has been closed\."
TWICE = r"^Unable to send response\. Non-decoupled model cannot send more than one response\."
FLAG_FIRST = r"^Unable to send response\. Non-decoupled model cannot send complete final before sending a response\."
DEADLINE_S = 30


class Client:
    """What reaches a client: ``(response, final)`` each."""

    def __init__(self):
        self.received = []
        self.cancelled = False
        self.failure = None

    def transmit(self, response, final):
        if self.failure is not None:
            raise self.failure
        self.received.append((response, final))

    def stream(self, *, decoupled):
        return ResponseStream(self.transmit, lambda: self.cancelled, decoupled)

    @property
    def error(self):
        ((response, final),) = self.received
        assert final
        return response.error()


@pytest.fixture
def client():
    return Client()


def _refused(text, stream, response, *, final):
    with pytest.raises(TritonModelException, match=text):
        stream.send(response, final)


# --- Models that answer any number of times ---


@pytest.mark.parametrize("count", [0, 1, 3])
def test_any_number_of_responses_then_the_flag(client, count):
    stream = client.stream(decoupled=True)
    responses = [InferenceResponse() for _ in range(count)]
    for response in responses:
        stream.send(response, False)
        assert not stream.closed
    stream.send(None, True)
    assert stream.closed
    assert client.received == [*((response, False) for response in responses), (None, True)]


def test_the_flag_may_come_with_the_last_response(client):
    stream = client.stream(decoupled=True)
    response = InferenceResponse()
    stream.send(response, True)
    assert client.received == [(response, True)]


@pytest.mark.parametrize(
    ("response", "final"), [(InferenceResponse(), False), (InferenceResponse(), True), (None, True)]
)
def test_nothing_is_sent_after_the_flag(client, response, final):
    stream = client.stream(decoupled=True)
    stream.send(None, True)
    _refused(CLOSED, stream, response, final=final)
    assert client.received == [(None, True)]


def test_a_response_that_cannot_be_sent_leaves_the_stream_open(client):
    """Should the last response fail on its way, the client still gets a final one."""
    stream = client.stream(decoupled=True)
    client.failure = TritonModelException("no memory")
    _refused("^no memory$", stream, InferenceResponse(), final=True)
    assert not stream.closed
    client.failure = None
    stream.fail(TritonError("it failed"))
    assert client.error.message() == "it failed"


# --- Models that answer once ---


def test_response_and_flag_in_one_call(client):
    stream = client.stream(decoupled=False)
    response = InferenceResponse()
    stream.send(response, True)
    assert client.received == [(response, True)]
    assert stream.closed


def test_response_then_flag(client):
    """The client has its answer with the first call: there is nothing to wait for."""
    stream = client.stream(decoupled=False)
    response = InferenceResponse()
    stream.send(response, False)
    assert client.received == [(response, True)]
    stream.send(None, True)
    assert client.received == [(response, True)]
    assert stream.closed


def test_a_second_response(client):
    stream = client.stream(decoupled=False)
    stream.send(InferenceResponse(), False)
    _refused(TWICE, stream, InferenceResponse(), final=False)
    _refused(TWICE, stream, InferenceResponse(), final=True)
    stream.send(None, True)
    _refused(TWICE, stream, InferenceResponse(), final=True)
    assert len(client.received) == 1


def test_the_flag_before_any_response(client):
    stream = client.stream(decoupled=False)
    _refused(FLAG_FIRST, stream, None, final=True)
    assert client.received == []
    response = InferenceResponse()
    stream.send(response, True)
    assert client.received == [(response, True)]


def test_the_flag_twice(client):
    stream = client.stream(decoupled=False)
    stream.send(InferenceResponse(), True)
    _refused(CLOSED, stream, None, final=True)


def test_a_single_response_that_cannot_be_sent(client):
    stream = client.stream(decoupled=False)
    client.failure = TritonModelException("no memory")
    _refused("^no memory$", stream, InferenceResponse(), final=True)
    client.failure = None
    stream.fail(TritonError("it failed"))
    assert client.error.message() == "it failed"


# --- Answers that come from elsewhere ---


def test_what_execute_returned_is_the_answer(client):
    stream = client.stream(decoupled=False)
    assert stream.settle() is True
    assert stream.closed
    _refused(TWICE, stream, InferenceResponse(), final=False)
    _refused(CLOSED, stream, None, final=True)
    assert stream.settle() is False
    assert client.received == []


@pytest.mark.parametrize("final", [False, True])
def test_what_execute_returned_after_the_sender_answered_is_not(client, final):
    stream = client.stream(decoupled=False)
    stream.send(InferenceResponse(), final)
    assert stream.settle() is False


def test_a_failed_batch_answers_what_is_open(client):
    stream = client.stream(decoupled=True)
    stream.send(InferenceResponse(), False)
    stream.fail(TritonError("it failed", TritonError.NOT_FOUND))
    response, final = client.received[1]
    assert final
    assert (response.error().message(), response.error().code()) == ("it failed", TritonError.NOT_FOUND)
    _refused(CLOSED, stream, InferenceResponse(), final=False)
    stream.fail(TritonError("again"))
    assert len(client.received) == 2


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_failed_batch_leaves_what_is_answered(client, decoupled):
    stream = client.stream(decoupled=decoupled)
    stream.send(InferenceResponse(), True)
    stream.fail(TritonError("it failed"))
    assert len(client.received) == 1


def test_a_failed_batch_leaves_an_answer_without_its_flag(client):
    stream = client.stream(decoupled=False)
    stream.send(InferenceResponse(), False)
    stream.fail(TritonError("it failed"))
    assert stream.closed
    assert len(client.received) == 1


# --- Cancellation ---


def test_whether_the_client_still_waits(client):
    stream = client.stream(decoupled=True)
    sender = InferenceResponseSender._create(stream)
    assert sender.is_cancelled() is False
    client.cancelled = True
    assert sender.is_cancelled() is True
    sender.send(flags=1)
    assert sender.is_cancelled() is True
    assert client.received == [(None, True)]


# --- Streams that the model drops ---


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_dropped_sender_tells_the_client(client, decoupled):
    sender = InferenceResponseSender._create(client.stream(decoupled=decoupled))
    del sender
    gc.collect()
    assert client.error.message() == DROPPED
    assert client.error.code() is TritonError.INTERNAL


def test_a_sender_dropped_in_the_middle(client):
    sender = InferenceResponseSender._create(client.stream(decoupled=True))
    first = InferenceResponse()
    sender.send(first)
    del sender
    gc.collect()
    assert client.received[0] == (first, False)
    response, final = client.received[1]
    assert final
    assert response.error().message() == DROPPED


def test_the_text_says_what_to_do(snapshot):
    assert snapshot == DROPPED
    assert "TRITONSERVER_RESPONSE_COMPLETE_FINAL" in DROPPED


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_sender_dropped_after_its_work_says_nothing(client, decoupled):
    stream = client.stream(decoupled=decoupled)
    stream.send(InferenceResponse(), not decoupled)
    if decoupled:
        stream.send(None, True)
    sent = list(client.received)
    del stream
    gc.collect()
    assert client.received == sent


def test_a_sender_dropped_after_an_answer_without_the_flag_says_nothing(client):
    stream = client.stream(decoupled=False)
    stream.send(InferenceResponse(), False)
    del stream
    gc.collect()
    assert len(client.received) == 1


def test_a_sender_dropped_by_a_thread_that_raised(client):
    """What a thread referred to goes with it."""

    def answer(sender):
        sender.send(InferenceResponse())

    sender = InferenceResponseSender._create(client.stream(decoupled=True))
    thread = threading.Thread(target=answer, args=(sender,))
    del sender
    thread.start()
    thread.join(DEADLINE_S)
    del thread
    gc.collect()
    assert [final for _, final in client.received] == [False, True]


def test_a_dropped_stream_whose_way_is_gone_raises_nothing(client):
    stream = client.stream(decoupled=True)
    client.failure = RuntimeError("the host is gone")
    del stream
    gc.collect()  # pytest turns what __del__ raises into a failure


def test_nothing_keeps_a_stream_alive(client):
    stream = client.stream(decoupled=True)
    reference = weakref.ref(stream)
    stream.send(InferenceResponse(), False)
    with pytest.raises(TritonModelException):
        client.stream(decoupled=False).send(None, True)
    del stream
    assert reference() is None


# --- Threads ---


def _in_threads(count, work):
    """Run ``work(number)`` in threads that begin together; what they raised, None for nothing."""
    barrier = threading.Barrier(count)
    outcomes = [None] * count

    def run(number):
        barrier.wait(DEADLINE_S)
        try:
            work(number)
        except TritonModelException as error:
            outcomes[number] = str(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    return outcomes


def test_threads_that_send_at_once_are_served_one_after_another():
    inside = threading.Lock()
    received = []

    def transmit(response, final):
        assert inside.acquire(blocking=False)
        received.append((response, final))
        inside.release()

    stream = ResponseStream(transmit, lambda: False, decoupled=True)

    def send_many(_number):
        for _ in range(50):
            stream.send(InferenceResponse(), False)

    assert _in_threads(8, send_many) == [None] * 8
    stream.send(None, True)
    assert len(received) == 8 * 50 + 1


@pytest.mark.parametrize("decoupled", [False, True])
def test_of_threads_that_end_a_stream_at_once_one_wins(client, decoupled):
    stream = client.stream(decoupled=decoupled)
    outcomes = _in_threads(8, lambda _number: stream.send(InferenceResponse(), True))
    assert outcomes.count(None) == 1
    assert len(client.received) == 1
    expected = "Response sender has been closed." if decoupled else "cannot send more than one response."
    assert all(expected in outcome for outcome in outcomes if outcome is not None)


def test_of_a_return_value_and_a_thread_one_answers(client):
    for _ in range(50):
        client.received.clear()
        stream = client.stream(decoupled=False)
        settled = []

        def work(number, stream=stream, settled=settled):
            if number:
                stream.send(InferenceResponse(), True)
            else:
                settled.append(stream.settle())

        _in_threads(2, work)
        assert len(client.received) + settled.count(True) == 1


def test_a_send_that_waits_holds_up_no_question_about_cancellation(client):
    """A slow client pauses ``send``; the model must still see that it went away."""
    entered, released = threading.Event(), threading.Event()

    def transmit(response, final):
        entered.set()
        assert released.wait(DEADLINE_S)

    stream = ResponseStream(transmit, lambda: client.cancelled, decoupled=True)
    thread = threading.Thread(target=stream.send, args=(InferenceResponse(), True), daemon=True)
    thread.start()
    assert entered.wait(DEADLINE_S)
    client.cancelled = True
    assert stream.is_cancelled() is True
    released.set()
    thread.join(DEADLINE_S)
    assert stream.closed
