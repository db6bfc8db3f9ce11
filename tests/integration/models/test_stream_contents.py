"""What streamed responses carry, the memory that they lie in, and what is left of them when their model ends."""

import asyncio

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from tests.integration.models.conftest import running_engine
from tests.support.engine import output_array
from tests.support.gates import Gate
from tests.support.repositories import write_model
from tests.support.streams import DECOUPLED, END, Stream, contents, function, reached, write_streams

CHECKED = f'{DECOUPLED} parameters {{ key: "VALIDATE_OUTPUTS" value {{ string_value: "yes" }} }}'


def test_memory_of_responses_that_are_still_read(lab):
    """What a client still reads is not written over; what it has given back is used again."""
    code = "for i in range(50): sender.send(out(*[i] * 50_000))\nsender.send(flags=FINAL)"

    async def watch():
        responses = await lab.stream(code, keep=True).rest()
        for response in responses[::2]:
            response.release()
        later = await lab.stream(
            "for i in range(20): sender.send(out(*[-1] * 50_000))\nsender.send(flags=FINAL)"
        ).rest()
        assert len(later) == 21
        for number, response in enumerate(responses):
            if number % 2:
                assert set(output_array(response, "OUT").tolist()) == {number}
                response.release()

    lab.run(watch())


def test_memory_does_not_grow_with_the_number_of_responses(lab):
    outputs = lab.engine.repository.catalogue.find("streams").instances[0].session.outputs

    def segments_bytes():
        return sum(output.memory.size_bytes for output in outputs._segments.values())

    code = """
        array = np.zeros(250_000, np.int32)
        for i in range({}):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + i)]))
        sender.send(flags=FINAL)
    """

    async def read(count):
        stream = lab.stream(code.format(count), keep=True)
        for number in range(count):
            response = await stream.next()
            assert output_array(response, "OUT")[-1] == number
            response.release()
        assert (await stream.next()).empty

    lab.run(read(20))
    before = segments_bytes()
    lab.run(read(300))
    assert segments_bytes() <= max(2 * before, 200_000_000)  # of 300 MB that were sent


@pytest.mark.spec("pb-P01")
def test_response_parameters_in_a_stream(lab):
    answers = lab.responses("""
        sender.send(out(1, number=2**62, yes=True, word="w\u00f6rd"))
        sender.send(out(2))
        sender.send(pb_utils.InferenceResponse(parameters={"only": "these"}))
        sender.send(out(3, last=1), FINAL)
    """)
    assert [answer.parameters for answer in answers] == [
        {"number": 2**62, "yes": True, "word": "w\u00f6rd"},
        None,
        {"only": "these"},
        {"last": 1},
    ]
    assert not any(answer.empty for answer in answers)


def test_only_requested_outputs(lab):
    code = """
        tensors = [pb_utils.Tensor("OUT", np.ones(1, np.int32)), pb_utils.Tensor("TEXT", np.array(["t"], object))]
        for _ in range(2):
            sender.send(pb_utils.InferenceResponse(tensors))
        sender.send(flags=FINAL)
    """
    assert [(a.out, a.text) for a in lab.responses(code)[:-1]] == [([1], ["t"])] * 2
    answers = lab.responses(code, requested_outputs=("TEXT",))
    assert [(a.out, a.text) for a in answers[:-1]] == [(None, ["t"])] * 2


@pytest.mark.spec("pb-E08")
def test_outputs_of_streams_are_validated_on_request(lab, snapshot):
    code = """
        sender.send(out(1))
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]))
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones((1, 1), np.int32))]))
        sender.send(out(2))
        sender.send(flags=FINAL)
    """
    first, second, third, fourth, last = lab.responses(code, model="checked")
    assert [first.out, fourth.out] == [[1], [2]]
    assert second.error == snapshot
    assert third.error == snapshot
    assert last == END
    assert [answer.error for answer in lab.responses(code, model="streams")] == [None] * 5


RESHAPED = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = request.inputs()[0].as_numpy()
            assert array.shape == (6,)
            for i in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + i)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
RESHAPED_CONFIG = f"""
backend: "python"
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 2, 3 ] reshape {{ shape: [ 6 ] }} }} ]
output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 3, 2 ] reshape {{ shape: [ 6 ] }} }} ]
{CHECKED}
"""


def test_outputs_of_streams_are_reshaped(tmp_path):
    write_model(tmp_path, "reshaped", RESHAPED, RESHAPED_CONFIG)

    async def watch():
        stream = Stream(engine, "reshaped", {"IN": np.arange(6, dtype=np.int32).reshape(2, 3)}, keep=True)
        return await stream.rest()

    with running_engine(tmp_path) as (engine, run):
        *answers, last = run(watch())
        assert [output_array(a, "OUT").tolist() for a in answers] == [
            [[i, i + 1], [i + 2, i + 3], [i + 4, i + 5]] for i in range(3)
        ]
        assert last.empty
        assert last.error is None


def test_memory_of_a_stream_that_nobody_reads(tmp_path):
    """Where the limit is reached the next response is an error; once memory is given back the stream goes on."""
    write_streams(tmp_path, "streams")
    code = """
        for i in range(20):
            sender.send(out(*[i] * 1_000_000))
        pass_gate(state["directory"], "released")
        sender.send(out(*[99] * 1_000_000), FINAL)
    """
    gate = Gate(tmp_path / "streams", "released")

    async def watch():
        stream = Stream(engine, "streams", {"CODE": function(code)}, keep=True)
        answers = [await stream.next() for _ in range(20)]
        sent = [answer for answer in answers if answer.error is None]
        failed = [answer.error for answer in answers if answer.error is not None]
        assert 4 <= len(sent) <= 10
        assert {error.code for error in failed} == {ErrorCode.UNAVAILABLE}
        assert "does not fit into the output memory that instance 'streams_0_0' may use" in failed[0].message
        for number, answer in enumerate(sent):
            assert set(output_array(answer, "OUT").tolist()) == {number}
            answer.release()
        await asyncio.sleep(0.05)
        gate.open()
        last = await stream.next()
        assert set(output_array(last, "OUT").tolist()) == {99}
        assert last.final
        last.release()

    with running_engine(tmp_path, memory_limit_bytes=40_000_000) as (engine, run):
        run(watch())


# The end of a model


def test_unloading_waits_for_streams(tmp_path):
    write_streams(tmp_path, "streams")
    gate = Gate(tmp_path / "streams", "unloading")
    code = """
        def work():
            sender.send(out(1))
            pass_gate(state["directory"], "unloading")
            for i in range(2, 5):
                sender.send(out(i))
            sender.send(flags=FINAL)
        in_thread(work)
    """

    async def watch():
        stream = Stream(engine, "streams", {"CODE": function(code)})
        await reached(gate)
        unloading = asyncio.ensure_future(engine.control.unload("streams"))
        await asyncio.sleep(0.05)
        gate.open()
        answers = await stream.rest()
        await unloading
        return answers

    with running_engine(tmp_path, explicit=True, startup_models=("streams",)) as (engine, run):
        assert contents(run(watch())) == [[1], [2], [3], [4]]


def test_streams_that_have_not_ended_when_their_model_has(tmp_path):
    """What is not over at the deadline gets an error, and its client is not left alone."""
    write_streams(tmp_path, "streams")

    async def submit():
        stream = Stream(engine, "streams", {"CODE": function('state["kept"] = sender\nsender.send(out(1))')})
        await stream.next()
        return stream

    async def end(stream):
        await engine.repository.unload_all(asyncio.get_running_loop().time() + 0.3)
        return await stream.rest()

    with running_engine(tmp_path) as (engine, run):
        (answer,) = run(end(run(submit())))
        assert answer.final
        assert answer.error
