"""Decoupled models: any number of responses, from anywhere, and the end that must be said."""

import gc
import threading

import pytest
import triton_python_backend_utils as pb_utils

from pybackend_testing import FinalizeError, HarnessError, ModelHarness, NoResponse, OutputError
from tests.unit.testing.conftest import DECOUPLED, configuration, wait_until

CONFIG = configuration("INT32 1", "INT32 1", **DECOUPLED)
FINAL = "flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"
MORE = f"""
def send(sender, value):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))]))

def end(sender):
    sender.send({FINAL})
"""
REPEAT = """
sender = request.get_response_sender()
for number in range(request.inputs()[0].as_numpy()[0]):
    send(sender, number)
end(sender)
"""


def _values(stream):
    return [result["OUT"].item() for result in stream]


@pytest.fixture
def decoupled(execute):
    return lambda body, **arguments: execute(body, CONFIG, MORE, **arguments)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_any_number_of_responses(decoupled, count):
    harness = decoupled(REPEAT)
    assert harness.decoupled
    stream = harness.stream(IN=[count])
    assert _values(stream) == list(range(count))
    assert stream.finished
    assert stream.collect() == []


def test_the_flag_may_come_with_the_last_response(decoupled):
    harness = decoupled(
        f"""
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1], np.int32))], parameters={{"n": 1}})
        request.get_response_sender().send(response, {FINAL})
        """
    )
    (result,) = harness.stream(IN=[1]).collect()
    assert result.parameters == {"n": 1}


def test_infer_says_what_to_use(decoupled):
    harness = decoupled(REPEAT)
    with pytest.raises(HarnessError, match=r"model 'm' is decoupled.*: use harness\.stream"):
        harness.infer(IN=[1])


def test_a_model_that_answers_once_can_be_streamed_too(execute):
    harness = execute('return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))])]')
    assert _values(harness.stream(IN=[1.0])) == [1.0]


def test_responses_from_a_thread_in_the_order_of_sending(decoupled):
    harness = decoupled(
        """
        import threading
        sender = request.get_response_sender()
        def work():
            for number in (2, 0, 1):
                send(sender, number)
            end(sender)
        self.thread = threading.Thread(target=work)
        self.thread.start()
        """
    )
    assert _values(harness.stream(IN=[1])) == [2, 0, 1]


def test_responses_are_as_they_were_when_they_were_sent(decoupled):
    harness = decoupled(
        """
        sender, array = request.get_response_sender(), np.array([0], np.int32)
        for number in range(3):
            array[0] = number
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        end(sender)
        """
    )
    assert _values(harness.stream(IN=[1])) == [0, 1, 2]


def test_streams_are_executed_one_after_another(decoupled):
    harness = decoupled("self.order = getattr(self, 'order', [])\nself.order.append(request.request_id())\n" + REPEAT)
    streams = [harness.stream(IN=[number], request_id=str(number)) for number in range(5)]
    assert [_values(stream) for stream in streams] == [list(range(number)) for number in range(5)]
    assert harness.model.order == ["0", "1", "2", "3", "4"]


# --- Errors ---


def test_an_error_response_in_the_stream(decoupled):
    harness = decoupled(
        """
        sender = request.get_response_sender()
        send(sender, 1)
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("half way")))
        end(sender)
        """
    )
    first, second = harness.stream(IN=[1])
    assert first.error is None
    assert second.error.message() == "half way"


def test_a_list_that_is_returned(decoupled):
    harness = decoupled("return []")
    (result,) = harness.stream(IN=[1]).collect()
    assert result.error.message().endswith(
        "Python model 'm_0' is using the decoupled mode and the execute function must return None."
    )


def test_an_exception_ends_the_stream(decoupled):
    harness = decoupled("send(request.get_response_sender(), 1)\nraise ValueError('half way')")
    first, second = harness.stream(IN=[1])
    assert first["OUT"].item() == 1
    assert second.error.message().startswith(
        "Failed to process the request(s) for model 'm_0', message: ValueError: half"
    )
    assert isinstance(second.exception, ValueError)


def test_an_exception_after_the_end_is_not_told(decoupled):
    harness = decoupled("end(request.get_response_sender())\nraise ValueError")
    assert harness.stream(IN=[1]).collect() == []


def test_pytests_own_exceptions_reach_the_test(decoupled):
    harness = decoupled("import pytest\npytest.fail('inside')")
    with pytest.raises(pytest.fail.Exception, match="inside"):
        harness.stream(IN=[1]).collect()


@pytest.mark.parametrize("body", ["pass", "request.get_response_sender()", "send(request.get_response_sender(), 1)"])
def test_a_sender_that_is_dropped_is_told(decoupled, body):
    harness = decoupled(body)
    results = harness.stream(IN=[1]).collect()
    assert results[-1].error.message().startswith("The model dropped this request's response sender")
    assert len(results) == 1 + body.startswith("send")


def test_a_forgotten_flag_is_explained(decoupled, snapshot):
    harness = decoupled("self.sender = request.get_response_sender()\nsend(self.sender, 1)")
    stream = harness.stream(IN=[1], wait_s=0.5)
    assert next(stream)["OUT"].item() == 1
    with pytest.raises(NoResponse) as caught:
        next(stream)
    message = str(caught.value)
    assert message == snapshot
    assert "send(..., flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)" in message
    harness.model.sender.send(flags=1)
    assert stream.collect() == []


def test_an_execute_that_does_not_return_is_named(decoupled):
    harness = decoupled("self.entered.set()\nself.gate.wait()\nend(request.get_response_sender())")
    harness.model.entered, harness.model.gate = threading.Event(), threading.Event()
    stream = harness.stream(IN=[1], wait_s=0.05)
    assert harness.model.entered.wait(60)
    waiting = harness.stream(IN=[1], wait_s=0.05)
    try:
        with pytest.raises(NoResponse, match=r"'execute' has not returned: it is at .*1/model\.py\(7\): execute"):
            next(stream)
        with pytest.raises(NoResponse, match=r"'execute' was not called: it is at .*1/model\.py\(7\): execute"):
            next(waiting)
    finally:
        harness.model.gate.set()
    assert stream.collect() == waiting.collect() == []


def test_an_execute_that_never_returns_cannot_be_finalized(write):
    code = """
    import threading
    class TritonPythonModel:
        entered, gate = threading.Event(), threading.Event()
        def execute(self, requests):
            self.entered.set()
            self.gate.wait()
        def finalize(self):
            raise AssertionError("it is busy")
    """
    harness = ModelHarness(write(code), config=CONFIG, wait_s=0.05).open()
    gate = harness.model.gate
    harness.stream(IN=[1])
    assert harness.model.entered.wait(60)
    with pytest.raises(
        FinalizeError, match=r"execute does not return, so that finalize cannot be called: it is at .*\): exe"
    ):
        harness.close()
    gate.set()


def test_outputs_of_a_stream_are_checked(decoupled):
    harness = decoupled(
        """
        sender = request.get_response_sender()
        sender.send(pb_utils.InferenceResponse())
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1))]))
        end(sender)
        """
    )
    stream = harness.stream(IN=[1])
    assert next(stream).outputs == {}, "a response need not have every output"
    with pytest.raises(OutputError, match="returned output 'OUT' as FP64"):
        next(stream)


def test_the_senders_rules_are_the_servers(decoupled):
    harness = decoupled("self.sender = request.get_response_sender()\nend(self.sender)")
    harness.stream(IN=[1]).collect()
    with pytest.raises(
        pb_utils.TritonModelException, match=r"^Unable to send response\. Response sender has been closed"
    ):
        harness.model.sender.send(pb_utils.InferenceResponse())


# --- Cancellation ---


def test_a_cancelled_stream(decoupled):
    harness = decoupled(
        """
        sender = request.get_response_sender()
        number = 0
        while not sender.is_cancelled():
            send(sender, number)
            number += 1
        assert request.is_cancelled()
        code = pb_utils.TritonError.CANCELLED
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("enough", code)), flags=1)
        """
    )
    for _ in range(2):  # cancelling one does not cancel the next
        stream = harness.stream(IN=[1])
        assert next(stream)["OUT"].item() == 0
        stream.cancel()
        *_, last = stream
        assert last.error.code() is pb_utils.TritonError.CANCELLED


def test_a_cancelled_request_of_a_model_that_answers_once(execute):
    harness = execute(
        """
        while not request.is_cancelled():
            time.sleep(0.001)
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("gone", pb_utils.TritonError.CANCELLED))]
        """,
        more="import time\n",
    )
    stream = harness.stream(IN=[1])
    stream.cancel()
    (result,) = stream
    assert result.error.message() == "gone"


# --- async execute ---

ASYNC = """
import asyncio
class TritonPythonModel:
    def initialize(self, args):
        self.inside = 0

    async def execute(self, requests):
        self.inside += 1
        for request in requests:
            sender = request.get_response_sender()
            count = request.inputs()[0].as_numpy()[0]
            if count < 0:
                raise ValueError("negative")
            while self.inside < count:
                await asyncio.sleep(0.001)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([count], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_coroutines_overlap(opened):
    harness = opened(ASYNC, CONFIG)
    streams = [harness.stream(IN=[number]) for number in (3, 2, 1)]
    assert [_values(stream) for stream in streams] == [[3], [2], [1]]


def test_a_coroutine_that_raises_is_logged_and_answered(opened):
    harness = opened(ASYNC, CONFIG)
    (result,) = harness.stream(IN=[-1]).collect()
    assert "message: ValueError: negative\n\nAt:\n" in result.error.message()
    assert isinstance(result.exception, ValueError)
    ((level, message),) = [(line.level, line.message) for line in harness.logs]
    assert (level, message) == ("ERROR", result.error.message())


def test_a_coroutine_that_waits_for_ever(opened):
    harness = opened(ASYNC, CONFIG)
    stream = harness.stream(IN=[100], wait_s=0.05)
    wait_until(lambda: harness.model.inside == 1)
    with pytest.raises(NoResponse, match="'execute' has returned a coroutine, which has not ended"):
        next(stream)
    harness.close()
    results = stream.collect()
    assert "CancelledError" in results[0].error.message(), "the end of the harness cancels what still runs"


# --- Memory ---


def test_inputs_and_streams_are_let_go(decoupled):
    harness = decoupled("import weakref\nself.reference = weakref.ref(request)\n" + REPEAT)
    stream = harness.stream(IN=[2])
    assert _values(stream) == [0, 1]
    gc.collect()
    wait_until(lambda: harness.model.reference() is None)
