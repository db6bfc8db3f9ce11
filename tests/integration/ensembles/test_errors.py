"""Requests to ensembles that fail, are given up, or find no memory: one clear answer, and nothing is kept."""

import asyncio

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.inference.pending import CANCELLED
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.model.ensemble import step_io
from tests.integration.ensembles.conftest import Lab
from tests.integration.models.conftest import running_engine
from tests.support import ensembles
from tests.support.ensembles import nothing_held, request_of, step, write_ensemble, write_mix
from tests.support.gates import Gate
from tests.support.streams import Stream, function, reached

BIG = "pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.zeros(600_000, np.int32))]"
"""Code of a large response, without its last bracket."""

OUT = "return [out(1)]"


def failing(code: str = "INTERNAL") -> np.ndarray:
    return function(f"return [failed('no luck', pb_utils.TritonError.{code})]")


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize(
    "code", ["INTERNAL", "INVALID_ARG", "UNAVAILABLE", "NOT_FOUND", "UNSUPPORTED", "ALREADY_EXISTS"]
)
def test_an_error_keeps_its_code_and_says_where(lab: Lab, code: str) -> None:
    for codes in ((failing(code), function(OUT)), (function(OUT), failing(code))):
        error = lab.refusal("row", {"CODE1": codes[0], "CODE2": codes[1]})
        assert (error.code, error.message) == (ErrorCode[code], "in ensemble 'row', no luck")
    error = lab.refusal("row_outer", {"CODE1": function(OUT), "CODE2": failing(code)})
    assert (error.code, error.message) == (ErrorCode[code], "in ensemble 'row_outer', in ensemble 'row', no luck")


def test_an_exception_is_told_with_its_traceback(lab: Lab) -> None:
    error = lab.refusal("row", {"CODE1": function(OUT), "CODE2": function("raise ValueError('wrong')")})
    assert error.code is ErrorCode.INTERNAL
    assert error.message.startswith("in ensemble 'row', ")
    assert "message: ValueError: wrong" in error.message
    assert "(2): run" in error.message


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize("request_id", ["", "r1"])
def test_an_output_that_no_step_sets(lab: Lab, request_id: str) -> None:
    expected = (
        f"in ensemble 'late', [request id: {request_id or '<id_unknown>'}] unexpected deadlock, at least one output is not set while "
        "no more ensemble steps can be made: no step has set 'OUT'"
    )
    arrays = {
        "CODE1": function("return [text('a')]"),
        "CODE2": function("return [text('b')]"),
        "IN": np.ones(1, np.int32),
    }
    error = lab.refusal("late", arrays, id=request_id)
    assert (error.code, error.message) == (ErrorCode.INVALID_ARG, expected)


@pytest.mark.parametrize("size", [1, 10_000])
def test_one_of_two_steps_fails(lab: Lab, size: int, tmp_path) -> None:
    """The answer does not wait for the other one, whose result is dropped."""
    gate = Gate(tmp_path, "slow")

    async def run() -> None:
        slow = function(f"pass_gate({str(tmp_path)!r}, 'slow')\nreturn [text(*['x'] * {size})]")
        asked = asyncio.ensure_future(ensembles.refusal(lab.engine, "pair", {"CODE1": slow, "CODE2": failing()}))
        error = await asked
        assert error.message == "in ensemble 'pair', no luck"
        await reached(gate)
        assert ensembles.held(lab.engine.repository.catalogue.find("pair")) == {"runs": 1}
        gate.open()
        await nothing_held(lab.engine)

    lab.run(run())


def test_memory_does_not_wait_for_steps_that_nobody_waits_for(lab: Lab, tmp_path) -> None:
    """What no step will take any more goes back although one is still at it."""
    gate = Gate(tmp_path, "slow")
    array = np.zeros(1_000_000, np.int32)

    async def run() -> None:
        model = lab.engine.repository.catalogue.find("late")
        lease = model.arena_of("IN").lease(array.nbytes)  # as front ends do it
        slow, late = function(f"pass_gate({str(tmp_path)!r}, 'slow')\nreturn [text('late')]"), Gate(tmp_path, "late")
        fails = function(f"pass_gate({str(tmp_path)!r}, 'late')\nreturn [failed('no luck')]")
        request = request_of("late", {"CODE1": fails, "CODE2": slow})
        request.inputs.append(InputTensor("IN", "INT32", array.shape, lease.view, lease))
        asked = asyncio.ensure_future(lab.engine.open(model.name, model.version).infer(request))
        await reached(gate)
        await reached(late)
        assert ensembles.held(lab.engine.repository.catalogue.find("plus")) == {"holds": 1, "input bytes": array.nbytes}
        late.open()
        error = (await asked).error
        assert error is not None
        assert error.message == "in ensemble 'late', no luck"
        assert ensembles.held(lab.engine.repository.catalogue.find("plus")) == {"holds": 1}
        assert ensembles.held(model) == {"runs": 1}
        gate.open()
        await nothing_held(lab.engine)

    lab.run(run())


def test_a_tensor_that_cannot_be_copied(lab: Lab, monkeypatch, caplog) -> None:
    """Whatever keeps the thread from it: there is an answer, and nothing is kept."""

    async def refuse(_target: memoryview, _source: bytes) -> None:
        raise RuntimeError("cannot start new thread")

    monkeypatch.setattr(step_io, "copy_bytes", refuse)
    error = lab.refusal("diamond", {"IN": np.zeros(2_000_000, np.float32)})
    assert (error.code, error.message) == (
        ErrorCode.INTERNAL,
        "in ensemble 'diamond', internal error: see the server's log",
    )
    assert "cannot start new thread" in caplog.text


def test_failures_are_counted(lab: Lab) -> None:
    row, part = (
        lab.engine.repository.catalogue.find("row").statistics,
        lab.engine.repository.catalogue.find("lab").statistics,
    )
    before = row.failures.copy(), part.failures.copy(), row.success_count
    lab.refusal("row", {"CODE1": failing(), "CODE2": function(OUT)})
    assert {reason: count - before[0][reason] for reason, count in row.failures.items() if count != before[0][reason]} == {"OTHER": 1}  # fmt: skip
    assert part.failures["BACKEND"] == before[1]["BACKEND"] + 1
    assert row.success_count == before[2]


def test_shapes_that_a_step_does_not_take(lab: Lab) -> None:
    """A variable dimension that the next model has fixed is seen when the tensor is there."""
    error = lab.refusal("around", {"IN": np.zeros((2, 2), np.float32)})
    assert error.message.startswith("in ensemble 'around', [request id: <id_unknown>] unexpected shape for input 'A'")


# --- given up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_a_running_step_learns_that_nobody_waits(lab: Lab, tmp_path, first: bool) -> None:
    gate = Gate(tmp_path, "here")
    waits = function(
        f"""
        mark({str(tmp_path)!r}, "here.reached")
        while not request.is_cancelled():
            import time
            time.sleep(0.005)
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED))]
        """
    )
    codes = (waits, function(OUT)) if first else (function(OUT), waits)

    async def run() -> None:
        stream = Stream(lab.engine, "row_outer", {"CODE1": codes[0], "CODE2": codes[1]})
        await reached(gate)
        stream.pending.cancel()
        (answer,) = await stream.rest()
        assert answer.code == "CANCELLED"
        assert answer.error == "in ensemble 'row_outer', in ensemble 'row', stopped"
        await nothing_held(lab.engine)

    before = lab.engine.repository.catalogue.find("row_outer").statistics.failures["CANCELED"]
    lab.run(run())
    assert lab.engine.repository.catalogue.find("row_outer").statistics.failures["CANCELED"] == before + 1


def test_no_step_begins_for_a_request_that_was_given_up(lab: Lab, tmp_path) -> None:
    gate = Gate(tmp_path, "here")

    async def run() -> None:
        waits = function(f"pass_gate({str(tmp_path)!r}, 'here')\nreturn [out(1)]")
        later = function(f"mark({str(tmp_path)!r}, 'later')\nreturn [out(1)]")
        stream = Stream(lab.engine, "row", {"CODE1": waits, "CODE2": later})
        await reached(gate)
        stream.pending.cancel()
        gate.open()
        (answer,) = await stream.rest()
        assert (answer.code, answer.error) == ("CANCELLED", "the client cancelled the request")
        await nothing_held(lab.engine)
        assert CANCELLED.__traceback__ is None  # it would keep what the step was to get

    lab.run(run())
    assert not (tmp_path / "later").exists()


def test_given_up_before_anything_ran(lab: Lab) -> None:
    async def run() -> None:
        stream = Stream(lab.engine, "row", {"CODE1": function(OUT), "CODE2": function(OUT)})
        stream.pending.cancel()
        (answer,) = await stream.rest()
        assert answer.code == "CANCELLED"
        await nothing_held(lab.engine)

    lab.run(run())


def test_given_up_while_a_tensor_is_copied(lab: Lab) -> None:
    """A copy of some megabytes takes place in another thread: turns of the loop pass."""
    x = np.zeros(8_000_000, np.float32)

    async def run() -> None:
        model = lab.engine.repository.catalogue.find("diamond")
        for turns in range(6):
            answered: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
            pending = lab.engine.submit(model, request_of("diamond", {"IN": x}), answered.set_result)
            for _ in range(turns):
                await asyncio.sleep(0)
            pending.cancel()
            answer = await answered
            assert answer.error is None or answer.error.code is ErrorCode.CANCELLED
            answer.release()
            await nothing_held(lab.engine)

    lab.run(run())


# --- no memory ------------------------------------------------------------------------------------------------------


def test_a_step_without_memory(tmp_path) -> None:
    write_mix(tmp_path)
    write_ensemble(
        tmp_path, "two", [step("mix", {"A": "IN", "B": "IN"}, {"S": "x"}), step("mix", {"A": "x"}, {"S": "OUT"})]
    )
    with running_engine(tmp_path, memory_limit_bytes=4 << 20) as (engine, run):
        lab = Lab(engine, run)
        error = lab.refusal("two", {"IN": np.zeros(700_000, np.float32)})
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.message.startswith("in ensemble 'two', no input memory left for model 'mix': ")
        x = np.ones(100_000, np.float32)
        assert (lab.ask("two", {"IN": x})["OUT"] == 3 * x).all()


@pytest.mark.thorough
def test_many_that_fail_leave_nothing(lab: Lab) -> None:
    """Whatever fails, and with whatever memory in use: all of it comes back."""
    big, fails = f"return [{BIG})]", f"return [{BIG}, pb_utils.TritonError('no'))]"

    async def run() -> None:
        async def one(number: int) -> None:
            codes = [(big, fails), (fails, big), (big, "raise ValueError"), ("return [text('a')]", fails)][number % 4]
            await ensembles.refusal(lab.engine, "row", {"CODE1": function(codes[0]), "CODE2": function(codes[1])})

        await asyncio.gather(*(one(number) for number in range(12)))
        await nothing_held(lab.engine)

    lab.run(run())
