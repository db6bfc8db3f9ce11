"""Batches whose requests are answered in different ways: by senders, by the return value, by errors, never."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from tests.integration.models.conftest import running_engine
from tests.support.gates import Gate
from tests.support.streams import DECOUPLED, Stream, contents, function, write_streams

BATCHING = """
max_batch_size: 4
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 10000000 }
"""
DROPPED = "The model dropped this request's response sender without having sent the final flag"
UNANSWERED = "The model returned no response for this request"
SENDERS = "senders = [request.get_response_sender() for request in requests]\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    repository = tmp_path_factory.mktemp("stream_batches")
    directory = write_streams(repository, "single", BATCHING)
    write_streams(repository, "streams", f"{BATCHING} {DECOUPLED}")
    with running_engine(repository) as (engine, run):

        def submit(model, code, asynchronous):
            code = function(code, takes="*requests", asynchronous=asynchronous).reshape(1, 1)
            return [Stream(engine, model, {"CODE": code, "IN": np.full((1, 1), i, np.int32)}) for i in range(4)]

        def batch(model, code, *, asynchronous=False):
            """What each of four requests gets that one execution has answered."""

            async def wait():
                return [await stream.rest() for stream in submit(model, code, asynchronous)]

            return run(wait())

        yield SimpleNamespace(engine=engine, run=run, submit=submit, batch=batch, directory=directory)


BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["def", "async def"])


def outcomes(batch):
    """The one thing that each request was answered with."""
    return [answer.content for (answer,) in batch]


@pytest.mark.spec("pb-D06")
@BOTH
def test_partly_by_senders(lab, asynchronous):
    code = """
        requests[1].get_response_sender().send(out(len(requests), 1), FINAL)
        requests[2].get_response_sender().send(failed("two"))
        return [out(len(requests), 0), None, None, failed("three")]
    """
    assert outcomes(lab.batch("single", code, asynchronous=asynchronous)) == [[4, 0], [4, 1], "two", "three"]


@pytest.mark.spec("pb-D06")
@BOTH
def test_partly_later(lab, asynchronous):
    code = f"""
        {SENDERS.strip()}
        def later():
            time.sleep(0.03)
            for number in (3, 1):
                senders[number].send(out(number), FINAL)
        in_thread(later)
        return [out(0), None, out(2), None]
    """
    assert outcomes(lab.batch("single", code, asynchronous=asynchronous)) == [[0], [1], [2], [3]]


@pytest.mark.spec("pb-D06")
@BOTH
def test_senders_and_a_whole_list(lab, asynchronous):
    """What was sent first stands."""
    code = f"""
        {SENDERS.strip()}
        senders[0].send(out(10), FINAL)
        senders[2].send(out(12))
        return [out(number) for number in range(4)]
    """
    assert outcomes(lab.batch("single", code, asynchronous=asynchronous)) == [[10], [1], [12], [3]]


@pytest.mark.spec("pb-D06")
@BOTH
@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("raise ValueError('the rest')", "ValueError: the rest"),
        ("return [out(0)]", "InferenceRequest(s) size is:4, and InferenceResponse(s) size is:1"),
        ("return out(0)", "Expected a list in the execute return"),
        (
            "return [None, None, None, 'x']",
            "Expected an 'InferenceResponse' object in the execute function return list",
        ),
    ],
)
def test_errors_fail_those_that_are_not_answered(lab, end, text, asynchronous):
    code = f"""
        {SENDERS.strip()}
        senders[1].send(out(1), FINAL)
        senders[2].send(out(2))
        {end}
    """
    first, second, third, fourth = outcomes(lab.batch("single", code, asynchronous=asynchronous))
    assert [second, third] == [[1], [2]]
    for error in (first, fourth):
        assert error.startswith("Failed to process the request(s) for model 'single_0_0', message: ")
        assert text in error


@pytest.mark.spec("pb-E09", "pb-D07")
@BOTH
def test_requests_without_an_answer(lab, asynchronous):
    code = """
        kept = requests[1].get_response_sender()
        in_thread(lambda: (time.sleep(0.02), kept.send(out(1), FINAL)))
        requests[2].get_response_sender()
        return [None] * 4
    """
    first, second, third, fourth = outcomes(lab.batch("single", code, asynchronous=asynchronous))
    assert second == [1]
    assert third.startswith(DROPPED)
    assert first.startswith(UNANSWERED)
    assert fourth.startswith(UNANSWERED)


@pytest.mark.spec("pb-D01")
@BOTH
def test_each_request_of_a_batch_has_a_stream(lab, asynchronous):
    code = f"""
        {SENDERS.strip()}
        for i in range(4):
            for number in range(i, 4):
                senders[number].send(out(number, i))
        for sender in reversed(senders):
            sender.send(flags=FINAL)
    """
    answers = lab.batch("streams", code, asynchronous=asynchronous)
    assert [contents(answer) for answer in answers] == [[[number, i] for i in range(number + 1)] for number in range(4)]


@pytest.mark.spec("pb-D01")
def test_threads_answer_the_requests_of_a_batch(lab):
    code = """
        def work(sender, number):
            for i in range(25):
                sender.send(out(number, i, *range(3000)))
            sender.send(flags=FINAL)
        for number, request in enumerate(requests):
            in_thread(work, request.get_response_sender(), number)
    """
    for number, answers in enumerate(lab.batch("streams", code)):
        assert contents(answers) == [[number, i, *range(3000)] for i in range(25)]


@BOTH
@pytest.mark.parametrize("end", ["raise ValueError('the rest')", "return [out(1)] * 4"])
def test_errors_end_the_streams_that_are_open(lab, end, asynchronous):
    code = f"""
        {SENDERS.strip()}
        senders[0].send(out(0), FINAL)
        senders[1].send(out(1))
        senders[1].send(flags=FINAL)
        senders[2].send(out(2))
        {end}
    """
    first, second, third, fourth = lab.batch("streams", code, asynchronous=asynchronous)
    assert [contents(first), contents(second)] == [[[0]], [[1]]]
    assert third[0].out == [2]
    for answers in (third, fourth):
        assert answers[-1].final
        assert "ValueError: the rest" in answers[-1].error or "must return None" in answers[-1].error
    assert (len(third), len(fourth)) == (2, 1)


@pytest.mark.spec("pb-D07")
@BOTH
def test_some_streams_are_dropped(lab, asynchronous):
    code = """
        for request in requests[::2]:
            request.get_response_sender().send(out(1), FINAL)
        requests[1].get_response_sender().send(out(1))
    """
    first, second, third, fourth = lab.batch("streams", code, asynchronous=asynchronous)
    assert [contents(first), contents(third)] == [[[1]], [[1]]]
    assert second[0].out == [1]
    assert second[1].error.startswith(DROPPED)
    assert fourth[0].error.startswith(DROPPED)


@pytest.mark.spec("pb-C01")
@pytest.mark.parametrize("model", ["single", "streams"])
def test_one_request_of_a_batch_is_cancelled(lab, model):
    name = f"cancelled_{model}"
    gate = Gate(lab.directory.parent / model, name)
    code = f"""
        pass_gate(state["directory"], "{name}")
        while not any(request.is_cancelled() for request in requests):
            pass
        told = [out(request.is_cancelled()) for request in requests]
        if {model == "single"}:
            return told
        for request, response in zip(requests, told):
            request.get_response_sender().send(response, FINAL)
    """

    async def watch():
        streams = lab.submit(model, code, asynchronous=False)
        await asyncio.to_thread(gate.wait_reached)
        streams[2].pending.cancel()
        gate.open()
        return [contents(await stream.rest()) for stream in streams]

    assert lab.run(watch()) == [[[0]], [[0]], [[1]], [[0]]]
