"""Ensembles with parts that answer any number of times: each response brings one of the ensemble's, in order."""

import asyncio
from typing import Any

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.model.model import ModelState
from pybackend_wire.messages import STREAM_WINDOW
from tests.integration.ensembles.conftest import Lab
from tests.support import ensembles
from tests.support.ensembles import nothing_held, request_of
from tests.support.gates import Gate, wait_until
from tests.support.streams import END, Received, Stream, contents, function, quiet, reached

COUNT = "for i in range({}):\n    sender.send(out(i, i))\nsender.send(flags=FINAL)"
DOUBLE = "return [out(*(2 * array(request, 'IN')))]"


def codes(*texts: str) -> dict[str, np.ndarray]:
    return {f"CODE{number}": function(text) for number, text in enumerate(texts, 1)}


def responses(lab: Lab, name: str, *texts: str, **members: Any) -> list[Received]:
    """All responses; nothing is held afterwards."""

    async def run() -> list[Received]:
        found = await Stream(lab.engine, name, codes(*texts), **members).rest()
        await nothing_held(lab.engine)
        return found

    return lab.run(run())


@pytest.mark.spec("srv-R18")
@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_each_response_runs_through_the_steps_behind(lab: Lab, count: int) -> None:
    answers = responses(lab, "s_chain", COUNT.format(count), DOUBLE)
    assert [answer.out for answer in answers[:-1]] == [[2 * i, 2 * i] for i in range(count)]
    assert answers[-1] == END
    assert not any(answer.final for answer in answers[:-1])


@pytest.mark.spec("srv-R18")
def test_a_final_flag_with_a_response(lab: Lab) -> None:
    assert contents(responses(lab, "s_chain", "sender.send(out(1))\nsender.send(out(2), FINAL)", DOUBLE)) == [[2], [4]]


@pytest.mark.spec("srv-R18")
def test_the_last_step_streams(lab: Lab) -> None:
    code = "for i in array(request, 'IN'):\n    sender.send(out(i))\nsender.send(flags=FINAL)"
    assert contents(responses(lab, "s_last", "return [out(5, 6, 7)]", code)) == [[5], [6], [7]]


@pytest.mark.spec("srv-R18")
def test_streams_within_a_stream(lab: Lab) -> None:
    """Both responses of the first bring three of the second, in the order of the first."""
    inner = "for i in range(3):\n    sender.send(out(*array(request, 'IN'), i))\nsender.send(flags=FINAL)"
    outer = "for i in range(4):\n    sender.send(out(i))\nsender.send(flags=FINAL)"
    assert contents(responses(lab, "s_nested", outer, inner)) == [[i, j] for i in range(4) for j in range(3)]


@pytest.mark.spec("srv-R18")
def test_large_tensors(lab: Lab) -> None:
    code = """
    for i in range(5):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(400_000, i, np.int32))]))
    sender.send(flags=FINAL)
    """
    take = """
    array_ = array(request, "IN")
    assert (array_ == array_[0]).all() and len(array_) == 400_000
    return [out(array_[0])]
    """
    assert contents(responses(lab, "s_chain", code, take)) == [[i] for i in range(5)]
    keep = 'return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array(request, "IN") + 1)])]'
    assert [set(out) for out in contents(responses(lab, "s_chain", code, keep))] == [{i + 1} for i in range(5)]


@pytest.mark.spec("srv-R18")
def test_an_ensemble_that_streams_is_a_part_itself(lab: Lab) -> None:
    assert lab.engine.repository.catalogue.find("s_outer").config.decoupled
    assert contents(responses(lab, "s_outer", COUNT.format(3), DOUBLE, DOUBLE)) == [[4 * i, 4 * i] for i in range(3)]


@pytest.mark.spec("srv-R18")
def test_the_order_of_the_stream_is_kept(lab: Lab, tmp_path) -> None:
    """The step behind it has two instances, and the first response takes longest there."""
    gate = Gate(tmp_path, "first")

    async def run() -> None:
        slow = f"""
        if array(request, "IN")[0] == 0:
            pass_gate({str(tmp_path)!r}, "first")
        else:
            mark({str(tmp_path)!r}, "others")
        return [out(*array(request, "IN"))]
        """
        stream = Stream(lab.engine, "s_chain", codes(COUNT.format(5), slow))
        await reached(gate)
        while not (tmp_path / "others").exists() or (tmp_path / "others").stat().st_size < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert not stream.has_more()
        gate.open()
        assert contents(await stream.rest()) == [[i, i] for i in range(5)]
        await nothing_held(lab.engine)

    lab.run(run())


@pytest.mark.spec("srv-R18")
def test_responses_come_while_the_stream_goes_on(lab: Lab, tmp_path) -> None:
    gate = Gate(tmp_path, "here")

    async def run() -> None:
        code = f"sender.send(out(1))\npass_gate({str(tmp_path)!r}, 'here')\nsender.send(out(2), FINAL)"
        stream = Stream(lab.engine, "s_chain", codes(code, DOUBLE))
        assert (await stream.next()).out == [2]
        await reached(gate)
        gate.open()
        assert contents(await stream.rest()) == [[4]]

    lab.run(run())


# --- what comes once per request, beside what comes once per response ------------------------------------------------


@pytest.mark.spec("srv-R18")
def test_outputs_that_come_once_are_in_every_response(lab: Lab) -> None:
    answers = responses(lab, "s_side", COUNT.format(3), "return [text('a')]")
    assert [(answer.out, answer.text) for answer in answers[:-1]] == [([i, i], ["a"]) for i in range(3)]
    assert answers[-1] == END


@pytest.mark.parametrize("stream_first", [True, False])
def test_whichever_comes_first(lab: Lab, tmp_path, stream_first: bool) -> None:
    """A response waits for the tensors that come once; those wait in their memory for the responses."""
    gate = Gate(tmp_path, "here")
    wait = f"pass_gate({str(tmp_path)!r}, 'here')\n"

    async def run(name: str, stream: str, once: str, expected: list[Any]) -> None:
        both = (stream, wait + once) if stream_first else (wait + stream, once)
        found = Stream(lab.engine, name, codes(*both))
        await reached(gate)
        await asyncio.sleep(0.02)
        assert not found.has_more()
        gate.open()
        answers = await found.rest()
        assert [(answer.out, answer.text) for answer in answers[:-1]] == expected
        await nothing_held(lab.engine)
        gate.close()

    lab.run(run("s_side", COUNT.format(3), "return [text('a')]", [([i, i], ["a"]) for i in range(3)]))
    lab.run(run("s_join", COUNT.format(3), "return [out(10, 20)]", [([10 + i, 20 + i], None) for i in range(3)]))


def test_an_output_of_the_request_alone_comes_once(lab: Lab) -> None:
    (answer,) = responses(lab, "s_side", COUNT.format(3), "return [text('a')]", requested_outputs=("TEXT",))
    assert (answer.text, answer.final) == (["a"], True)


def test_streams_that_do_not_meet(lab: Lab) -> None:
    """Each response has what belongs to its own stream."""
    two = "for i in range(2):\n    sender.send(text(i))\nsender.send(flags=FINAL)"
    answers = responses(lab, "s_two", COUNT.format(3), two)
    assert [answer.out for answer in answers if answer.out] == [[i, i] for i in range(3)]
    assert [answer.text for answer in answers if answer.text] == [["0"], ["1"]]
    assert [answer.out and answer.text for answer in answers] == [None] * 6


def test_a_response_has_the_outputs_that_came_to_be(lab: Lab) -> None:
    code = "sender.send(out(1))\nsender.send(text('a'))\nsender.send(pb_utils.InferenceResponse([]))\nsender.send(flags=FINAL)"
    answers = responses(lab, "s_parts", code)
    assert [(answer.out, answer.text, answer.empty) for answer in answers] == [
        ([1], None, False),
        (None, ["a"], False),
        (None, None, True),
    ]


def test_a_response_without_outputs_brings_nothing(lab: Lab) -> None:
    """Not even what comes once per request."""
    code = "sender.send(out(1))\nsender.send(pb_utils.InferenceResponse([]))\nsender.send(out(2), FINAL)"
    answers = responses(lab, "s_side", code, "return [text('a')]")
    assert [(answer.out, answer.text) for answer in answers] == [([1], ["a"]), ([2], ["a"]), (None, None)]


# --- errors, and clients that take their time -----------------------------------------------------------------------


@pytest.mark.spec("srv-R18")
def test_an_error_ends_the_stream(lab: Lab) -> None:
    answers = responses(
        lab, "s_chain", "sender.send(out(1))\nsender.send(failed('no luck'))\nsender.send(out(2), FINAL)", DOUBLE
    )
    assert (answers[-1].error, answers[-1].final) == ("in ensemble 's_chain', no luck", True)
    assert contents(answers)[:-1] in ([], [[2]])
    fails = "return [failed('not two')] if array(request, 'IN')[0] == 2 else [out(1)]"
    answers = responses(lab, "s_chain", COUNT.format(100), fails)
    assert answers[-1].error == "in ensemble 's_chain', not two"
    assert contents(answers)[:-1] in ([], [[1]], [[1], [1]])


def test_a_client_that_goes_away_ends_the_stream(lab: Lab, tmp_path) -> None:
    async def run() -> None:
        code = f"""
        i = 0
        while not request.is_cancelled():
            sender.send(out(i))
            i += 1
        mark({str(tmp_path)!r}, "seen")
        sender.send(flags=FINAL)
        """
        stream = Stream(lab.engine, "s_chain", codes(code, DOUBLE))
        await stream.next()
        stream.pending.cancel()
        last = (await stream.rest())[-1]
        assert last.empty or last.code == "CANCELLED"
        await nothing_held(lab.engine)

    lab.run(run())
    assert (tmp_path / "seen").exists()


@pytest.mark.parametrize("name", ["s_chain", "s_outer"])
def test_a_client_that_pauses_stops_the_stream(lab: Lab, name: str) -> None:
    """The model waits in ``send``: what was on its way arrives, then nothing more, until the client goes on."""

    async def run() -> None:
        endless = "while not request.is_cancelled():\n    sender.send(out(1))\nsender.send(flags=FINAL)"
        arrays = codes(endless, DOUBLE, DOUBLE)
        stream = Stream(
            lab.engine, name, {key: arrays[key] for key in lab.engine.repository.catalogue.find(name).signature.inputs}
        )
        await stream.next()
        stream.pending.pause()
        await quiet(lambda: stream.count)
        before = stream.count
        stream.pending.resume()
        while stream.count < before + 100:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stream.pending.cancel()
        await stream.rest()
        await nothing_held(lab.engine)

    lab.run(run())


def test_a_step_that_begins_while_the_client_pauses(lab: Lab, tmp_path) -> None:
    """It waits in its first ``send``, or soon after."""
    gate = Gate(tmp_path, "first")

    async def run() -> None:
        slow = f"pass_gate({str(tmp_path)!r}, 'first')\nreturn [out(1)]"
        endless = f"mark({str(tmp_path)!r}, 'begun')\nwhile not request.is_cancelled():\n    sender.send(out(1))\nsender.send(flags=FINAL)"
        stream = Stream(lab.engine, "s_last", codes(slow, endless))
        await reached(gate)
        stream.pending.pause()
        gate.open()
        await asyncio.to_thread(wait_until, (tmp_path / "begun").exists, "the step does not begin")
        await quiet(lambda: stream.count)
        before = stream.count
        stream.pending.resume()
        while stream.count < before + 100:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stream.pending.cancel()
        await stream.rest()
        await nothing_held(lab.engine)

    lab.run(run())


@pytest.mark.spec("srv-R18")
def test_a_limit_of_requests_in_flight(lab: Lab, tmp_path) -> None:
    """With ``max_inflight_requests: 2`` the step behind a stream has two requests at most, and the stream waits."""
    gate = Gate(tmp_path, "here")

    async def run() -> None:
        slow = f"pass_gate({str(tmp_path)!r}, 'here')\nreturn [out(*array(request, 'IN'))]"
        sent = f"for i in range(600):\n    sender.send(out(i))\n    mark({str(tmp_path)!r}, 'sent')\nsender.send(flags=FINAL)"
        stream = Stream(lab.engine, "s_limited", codes(sent, slow))
        await reached(gate, 2)
        await quiet(lambda: (tmp_path / "sent").stat().st_size)
        assert (tmp_path / "sent").stat().st_size <= STREAM_WINDOW
        assert ensembles.held(lab.engine.repository.catalogue.find("lab"))["requests"] == 2
        gate.open()
        assert contents(await stream.rest()) == [[i] for i in range(600)]
        await nothing_held(lab.engine)

    lab.run(run())


def test_a_step_that_fails_while_the_stream_waits_for_it(lab: Lab, tmp_path) -> None:
    """The stream is let go: its model, which does not care that nobody listens, comes to its end."""
    gate = Gate(tmp_path, "here")

    async def run() -> None:
        fails = f"pass_gate({str(tmp_path)!r}, 'here')\nreturn [failed('no luck')]"
        sent = (
            f"for i in range(500):\n    sender.send(out(i))\nmark({str(tmp_path)!r}, 'end')\nsender.send(flags=FINAL)"
        )
        stream = Stream(lab.engine, "s_limited", codes(sent, fails))
        await reached(gate, 2)
        await asyncio.sleep(0.1)
        gate.open()
        assert [answer.error for answer in await stream.rest()] == ["in ensemble 's_limited', no luck"]
        await nothing_held(lab.engine)

    lab.run(run())
    assert (tmp_path / "end").exists()


def test_responses_that_are_kept_keep_their_memory(lab: Lab) -> None:
    """Even when the request is over, and when others have come after it."""
    size = 100_000
    send = f"for i in range(3):\n    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.full({size}, i, np.int32))]))"
    once = f"return [pb_utils.InferenceResponse([pb_utils.Tensor('TEXT', np.array(['a'] * {size}, object))])]"

    async def run() -> None:
        stream = Stream(lab.engine, "s_side", codes(f"{send}\nsender.send(flags=FINAL)", once), keep=True)
        kept = await stream.rest()
        assert lab.engine.repository.catalogue.find("s_side").open_requests.count == 0
        await Stream(lab.engine, "s_side", codes(f"{send}\nsender.send(flags=FINAL)", once)).rest()
        for i, response in enumerate(kept[:-1]):
            by_name = {output.name: bytes(output.data) for output in response.outputs}
            assert by_name["OUT"] == np.full(size, i, np.int32).tobytes()
            assert by_name["TEXT"] == b"\x01\x00\x00\x00a" * size
            response.release()
            response.release()
        await nothing_held(lab.engine)

    lab.run(run())


# --- what clients see of it -----------------------------------------------------------------------------------------


@pytest.mark.spec("srv-R18")
def test_the_configuration_says_that_it_streams(lab: Lab) -> None:
    for name in ("s_chain", "s_last", "s_outer"):
        model = lab.engine.repository.catalogue.find(name)
        assert model.state is ModelState.READY
        assert model.config.decoupled
        assert model.config.document["model_transaction_policy"] == {"decoupled": True}
    assert not lab.engine.repository.catalogue.find("row").config.decoupled


def test_an_answer_without_a_client(lab: Lab) -> None:
    """Requests that nobody takes the answers of are of no consequence."""

    async def run() -> None:
        model = lab.engine.repository.catalogue.find("s_chain")
        lab.engine.submit(
            model, request_of("s_chain", codes(COUNT.format(3), DOUBLE)), lambda response: response.release()
        )
        await asyncio.sleep(0)
        await nothing_held(lab.engine)

    lab.run(run())
    assert lab.refusal("row", codes("return [out(1)]", "raise ValueError")).code is ErrorCode.INTERNAL
