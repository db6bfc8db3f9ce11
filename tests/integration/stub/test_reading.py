"""Who reads in a stub: whatever its threads do, each of them gets what it waits for, and the host is heard in time."""

import pytest

from pybackend_wire.host_messages import Answer, Cancel, Flow, Probe, Reply
from pybackend_wire.messages import StubMessage
from tests.integration.stub.conftest import execute, request

RESULT, HANDED_BACK, CALL = StubMessage.RESULT, StubMessage.HANDED_BACK, StubMessage.CALL

MODEL = """
import os, sys, threading, time

def run_model(name="other"):
    return pb_utils.InferenceRequest(model_name=name, inputs=[], requested_output_names=["OUT"]).exec()

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            name, _, argument = request.request_id().partition(" ")
            if name:
                getattr(self, name)(argument, request)
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def call(self, names, request):
        for name in names.split():
            response = run_model(name)
            if response.has_error():
                raise ValueError(response.error().message())

    def sleep(self, seconds, request):
        time.sleep(float(seconds))

    def start_caller(self, name, request):
        self.caller = threading.Thread(target=run_model, args=(name,))
        self.caller.start()

    def join_caller(self, _, request):
        self.caller.join()

    def switch_often(self, _, request):
        sys.setswitchinterval(1e-6)

    def until_cancelled(self, _, request):
        while not request.is_cancelled():
            time.sleep(0.001)

    def threads(self, count, request):
        threads = [threading.Thread(target=run_model, args=("other %d" % n,)) for n in range(int(count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""


def reply(call: list) -> tuple:
    """The only response to a call: nothing but success."""
    return Reply(call[1], True, [None, [], None])


def test_an_idle_stub_hands_nothing_back(host):
    stub = host(MODEL)
    for number in range(1, 4):
        stub.say(execute(number))
        assert stub.hear()[:2] == [RESULT, number]


def test_work_that_arrives_together_is_handed_back_before_a_call(host):
    """Else it would wait for the call, and the call perhaps for it."""
    stub = host(MODEL)
    stub.say(execute(1, request("call other")), execute(2), execute(3))
    assert stub.hear() == [HANDED_BACK, [2, 3]]
    call = stub.hear()
    assert call[0] == CALL
    stub.say(execute(4))
    assert stub.hear() == [HANDED_BACK, [4]]
    stub.say(reply(call))
    assert stub.wait_for(RESULT)[1] == 1
    stub.say(execute(2), execute(3))
    assert [stub.wait_for(RESULT)[1] for _ in range(2)] == [2, 3]


def test_work_that_comes_with_the_answer_to_a_call_is_kept(host):
    stub = host(MODEL)
    stub.say(execute(1, request("call other")))
    for number in range(2, 5):
        call = stub.hear()
        assert call[0] == CALL
        stub.say(execute(number, request("call other")), reply(call))
        assert stub.hear()[:2] == [RESULT, number - 1]


def test_work_that_comes_with_the_answer_to_a_call_is_handed_back_before_another_call(host):
    stub = host(MODEL)
    stub.say(execute(1, request("call other another")))
    call = stub.hear()
    stub.say(execute(2), reply(call))
    assert stub.hear() == [HANDED_BACK, [2]]
    call = stub.hear()
    assert call[0] == CALL
    stub.say(execute(3), reply(call))  # it was sent before the host knew
    assert stub.hear() == [HANDED_BACK, [3]]
    assert stub.hear()[:2] == [RESULT, 1]
    stub.say(execute(5))
    assert stub.hear()[:2] == [RESULT, 5]


def test_answers_leave_before_a_call(host):
    stub = host(MODEL)
    stub.say(execute(1), execute(2, request("call other")))
    assert stub.hear()[:2] == [RESULT, 1]
    call = stub.wait_for(CALL)
    stub.say(reply(call))
    assert stub.wait_for(RESULT)[1] == 2


def test_what_follows_work_that_was_handed_back_does_not_overtake_it(host):
    """It was sent before the host knew; that it knows shows in a number that is left out."""
    stub = host(MODEL)
    stub.say(execute(1, request("sleep 0.5")), execute(2), execute(3))
    stub.nudge()
    assert stub.hear() == [HANDED_BACK, [2, 3]]
    assert stub.wait_for(RESULT)[1] == 1
    stub.say(execute(4))
    assert stub.hear() == [HANDED_BACK, [4]]
    stub.say(execute(5), execute(7))
    assert [stub.hear()[:2], stub.hear()[:2]] == [[HANDED_BACK, [5]], [RESULT, 7]]
    stub.say(execute(8))
    assert stub.hear()[:2] == [RESULT, 8]


def test_work_behind_a_slow_execution_is_handed_back_when_the_host_asks(host):
    stub = host(MODEL)
    stub.say(execute(1, request("sleep 2")), execute(2))
    stub.nudge()
    assert stub.hear() == [HANDED_BACK, [2]]
    assert stub.wait_for(RESULT)[1] == 1


def test_a_nudge_that_comes_first_counts_for_what_follows(host):
    """The stub may read its nudges before its socket, or the other way round."""
    stub = host(MODEL)
    for number in range(1, 300, 3):  # a number is left out behind what may be handed back
        stub.say(execute(number, request("sleep 0.02")), execute(number + 1))
        stub.nudge()
        message = stub.hear()
        if message == [HANDED_BACK, [number + 1]]:
            assert stub.wait_for(RESULT)[1] == number
        else:  # it was faster with the first one
            assert message[:2] == [RESULT, number]
            assert stub.hear()[1] in (number + 1, [number + 1])


def test_a_nudged_stub_that_has_nothing_to_do_keeps_its_work(host):
    """Work and nudges come in any order, as for a model with an ``is_ready``; nothing is lost and nothing crashes."""
    stub = host(MODEL + "\n    def is_ready(self):\n        return True\n")
    assert stub.initialized[1] is True
    stub.say(execute(1, request("switch_often")))
    assert stub.wait_for(RESULT)[1] == 1
    for number in range(2, 2400, 2):
        stub.say(execute(number), Probe())
        stub.nudge()
        awaited = {RESULT, StubMessage.READINESS}
        while awaited:
            message = stub.hear()
            if message[0] == HANDED_BACK:  # it was read before the main thread was quite through with the last one
                assert message[1] == [number]
                stub.say(execute(number))
            else:
                awaited.remove(message[0])


def test_a_thread_that_waits_is_served_whoever_read_before(host):
    """The attendant reads, the main thread takes what it has read, and then nobody would read for the thread."""
    stub = host(MODEL + "\n    def is_ready(self):\n        return True\n")
    stub.say(execute(1, request("start_caller other")))
    call = stub.wait_for(CALL)
    stub.wait_for(RESULT)
    for number in range(2, 200):
        # The attendant is brought to read in the middle of an execution, and still does when the next one comes.
        stub.say(execute(number, request("sleep 0.002")))
        stub.nudge()
        assert stub.wait_for(RESULT)[1] == number
    stub.say(execute(200, request("join_caller")))
    stub.nudge()
    stub.say(reply(call))
    assert stub.wait_for(RESULT)[1] == 200


@pytest.mark.parametrize("order", ["first to last", "last to first"])
def test_threads_that_call_at_once(host, order):
    stub = host(MODEL)
    stub.say(execute(1, request("threads 64")))
    calls = [stub.wait_for(CALL) for _ in range(64)]
    assert len({call[1] for call in calls}) == 64
    if order == "last to first":
        calls.reverse()
    for call in calls:
        stub.say(reply(call))
    assert stub.wait_for(RESULT)[1] == 1


def test_a_readiness_check_while_threads_wait_for_calls(host):
    """The question stands in the socket behind a reply: who has read that one stops, and another must read on."""
    stub = host(MODEL + "\n    def is_ready(self):\n        return True\n")
    stub.say(execute(1, request("threads 3")))
    calls = [stub.wait_for(CALL) for _ in range(3)]
    for call in calls[:2]:
        stub.say(reply(call))
        stub.say(Probe())
        stub.nudge()
        assert stub.hear() == [StubMessage.READINESS, True, ""]
    stub.say(reply(calls[2]))
    assert stub.wait_for(RESULT)[1] == 1


def test_replies_that_nobody_waits_for_do_no_harm(host):
    stub = host(MODEL)
    stub.say(Reply(77, True, [None, [], None]), Answer(78, None, None))
    stub.say(execute(1, request("call other")))
    call = stub.wait_for(CALL)
    stub.say(reply(call), reply(call))
    assert stub.wait_for(RESULT)[1] == 1
    stub.say(Cancel(1, 0), Flow(1, 0, 0), Flow(9, 9, None))
    stub.say(execute(2))
    assert stub.wait_for(RESULT)[1] == 2


def test_cancellation_is_seen_while_execute_runs(host):
    stub = host(MODEL)
    stub.say(execute(1, request("until_cancelled")))
    stub.say(Cancel(1, 0))
    assert stub.wait_for(RESULT)[1] == 1


def test_the_host_goes_away_while_threads_wait(host):
    stub = host(MODEL)
    stub.say(execute(1, request("threads 8")))
    for _ in range(8):
        stub.wait_for(CALL)
    stub.socket.close()
    stub.process.wait(60)
