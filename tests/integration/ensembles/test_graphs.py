"""How requests run through the steps of an ensemble: what comes out, in which order steps run, what they are told."""

import asyncio
import json

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.frontend.calls import services
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.validation import validate
from pybackend.model.ensemble.planned_step import MOST_LAYOUTS
from pybackend.modelconfig.signature import ModelSignature
from tests.integration.ensembles.conftest import Lab
from tests.support import ensembles
from tests.support.ensembles import floats, nothing_held, request_of
from tests.support.gates import Gate
from tests.support.repositories import by_the_server
from tests.support.streams import function, reached

SIZES = [3, 5000, 400_000]
"""Elements: in the frame, in shared memory, and large enough to be copied in another thread."""


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize("size", SIZES)
def test_fan_out_and_in(lab: Lab, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    (out,) = lab.ask("diamond", {"IN": x}).values()
    assert (out == x + 2 * (x + 1)).all()


@pytest.mark.parametrize("size", SIZES)
def test_one_tensor_for_several_inputs(lab: Lab, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    assert (lab.ask("same", {"IN": x})["OUT"] == 6 * x).all()


@pytest.mark.parametrize("size", SIZES)
def test_an_input_that_is_an_output_too(lab: Lab, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    outputs = lab.ask("through", {"IN": x})
    assert list(outputs) == ["OUT", "IN"]
    assert (outputs["OUT"] == x).all()
    assert (outputs["IN"] == x).all()
    assert (lab.ask("through", {"IN": x}, requested_outputs=("IN",))["IN"] == x).all()


@pytest.mark.spec("srv-R17")
def test_only_what_is_wanted_is_made(lab: Lab) -> None:
    def counts() -> tuple[int, int]:
        models = (lab.engine.repository.catalogue.find(name) for name in ("mix", "lab"))
        return tuple(model.statistics.success_count for model in models)

    arrays = {"IN": floats(5), "CODE": function("return [text('a')]")}
    mix, codes = counts()
    assert list(lab.ask("outputs", arrays)) == ["OUT", "TEXT", "LAST"]
    assert counts() == (mix + 2, codes + 1)
    assert list(lab.ask("outputs", arrays, requested_outputs=("LAST", "OUT"))) == ["LAST", "OUT"]
    assert counts() == (mix + 4, codes + 1)
    outputs = lab.ask("outputs", arrays, requested_outputs=("TEXT",))
    assert outputs["TEXT"].tolist() == [b"a"]
    assert counts() == (mix + 4, codes + 2)


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize("size", SIZES)
def test_optional_inputs(lab: Lab, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    assert (lab.ask("optional", {"IN": x})["OUT"] == x).all()
    assert (lab.ask("optional", {"IN": x, "MORE": x + 1})["OUT"] == x + 2 * (x + 1) + 3 * (x + 1)).all()
    assert (lab.ask("optional", {"IN": x, "LEFT": x + 1})["OUT"] == x + 2 * (x + 1)).all()


@pytest.mark.spec("srv-R33")
@pytest.mark.parametrize("ensemble", ["row", "row_outer"])
def test_a_step_whose_optional_input_is_left_out(lab: Lab, ensemble: str) -> None:
    """It runs as soon as the step before it is done, and sees that the input is missing."""
    seen = "return [out(2 if pb_utils.get_input_tensor_by_name(request, 'IN') is None else 1)]"
    for first, out in (("return [text('a')]", [2]), ("return [out(7)]", [1])):
        outputs = lab.ask(ensemble, {"CODE1": function(first), "CODE2": function(seen)})
        assert {name: array.tolist() for name, array in outputs.items()} == {"OUT": out}


@pytest.mark.spec("srv-R33")
def test_outputs_that_the_last_step_leaves_out(lab: Lab, caplog) -> None:
    out = function("return [out(7)]")
    caplog.set_level("DEBUG")
    nothing = "return [pb_utils.InferenceResponse([])]"
    for code, expected in (("return [out(1)]", {"OUT"}), ("return [text('a')]", {"TEXT"}), (nothing, set())):
        assert set(lab.ask("two", {"CODE1": function(code)})) == expected
    assert "Composing models did not output tensor OUT of ensemble 'two'" in caplog.text
    assert set(lab.ask("row", {"CODE1": out, "CODE2": function("return [text('a')]")})) == set()
    assert set(lab.ask("row_outer", {"CODE1": out, "CODE2": function("return [text('a')]")})) == set()


@pytest.mark.spec("srv-R33")
def test_steps_with_optional_inputs_of_which_one_is_given(lab: Lab) -> None:
    """Each of two independent steps runs, and the one without its input leaves its output out."""
    x = np.arange(3, dtype=np.float32)
    for given in ("A", "B"):
        outputs = lab.ask("either", {given: x})
        assert {name: array.tolist() for name, array in outputs.items()} == {f"{given}_OUT": x.tolist()}


@pytest.mark.parametrize("size", SIZES)
def test_an_ensemble_in_an_ensemble(lab: Lab, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    assert (lab.ask("outer", {"IN": x})["OUT"] == x + 2).all()


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize("rows", [1, 3])
def test_batches_all_through(lab: Lab, rows: int) -> None:
    x = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5)
    before = lab.engine.repository.catalogue.find("all_batched").statistics.inference_count
    out = lab.ask("all_batched", {"IN": x})["OUT"]
    assert out.shape == (rows, 5)
    assert (out == x + 1).all()
    assert lab.engine.repository.catalogue.find("all_batched").statistics.inference_count == before + rows


@pytest.mark.spec("srv-R17")
def test_batches_within(lab: Lab) -> None:
    assert lab.ask("within", {"IN": floats(1, 2, 3)})["OUT"].tolist() == [2, 3, 4]
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert (lab.ask("dimension", {"IN": x})["OUT"] == x).all()


@pytest.mark.spec("srv-R17")
def test_batches_around_a_part_without(lab: Lab) -> None:
    assert lab.ask("around", {"IN": floats(1, 2).reshape(1, 2)})["OUT"].tolist() == [[2, 3]]
    error = lab.refusal("around", {"IN": floats(1, 2, 3, 4).reshape(2, 2)})
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(
        "in ensemble 'around', [request id: <id_unknown>] unexpected shape for input 'A' for model 'fixed'. Expected [2], "
        "got [2,2]"
    )


@by_the_server
def test_a_step_s_request_is_validated_once_per_layout(lab: Lab, monkeypatch) -> None:
    """What was validated is the datatypes and shapes, so those that a step has not taken before are validated, and so
    is text."""
    validated: list[tuple[str, list[int]]] = []

    def counting(request: InferenceRequest, signature: ModelSignature) -> None:
        validated.append((request.model_name, list(request.inputs[0].shape)))
        validate(request, signature)

    def count(name: str, arrays: dict[str, np.ndarray]) -> int:
        before = len(validated)
        lab.ask(name, arrays)
        return len(validated) - before

    monkeypatch.setattr(services, "validate", counting)
    part = lab.engine.repository.catalogue.find("batched").statistics
    x = np.zeros((2, 77), np.float32)
    assert count("all_batched", {"IN": x}) == 2
    before = part.inference_count
    assert count("all_batched", {"IN": x + 1}) == 0
    assert part.inference_count == before + 4
    assert count("all_batched", {"IN": x[:1]}) == 2
    # A refusal teaches nothing, and what was learned lets nothing else pass.
    wrong = {"IN": floats(1, 2, 3, 4).reshape(2, 2)}
    right = {"IN": floats(1, 2).reshape(1, 2)}
    for _ in range(2):
        assert lab.refusal("around", wrong).code is ErrorCode.INVALID_ARG
        lab.ask("around", right)
    assert count("around", right) == 0
    code = {"CODE1": function("return [text('a')]"), "CODE2": function("return [out(1)]")}
    assert validated
    for _ in range(2):
        assert count("row", code) >= 2
    # Only so many are kept.
    many = [np.zeros((1, size), np.float32) for size in range(100, 100 + 2 * MOST_LAYOUTS)]
    assert [count("all_batched", {"IN": each}) for each in many] == [2] * len(many)
    assert [count("all_batched", {"IN": each}) for each in many].count(0) <= MOST_LAYOUTS


def test_reshape_of_the_ensemble_itself(lab: Lab) -> None:
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    out = lab.ask("reshaped", {"IN": x})["OUT"]
    assert out.tolist() == [[0, 1], [2, 3]]


@pytest.mark.spec("srv-R17")
def test_every_step_is_told_what_came_with_the_request(lab: Lab) -> None:
    parameters = {"a": 1, "b": "two", "c": True}
    told = lab.ask(
        "told",
        {"IN": floats(1)},
        id="r1",
        parameters=parameters,
        timeout_us=90_000_000,
        correlation_id=17,
        flags=3,
        priority=2,
    )
    for name, outputs in (("FIRST", ["OUT", "TOLD"]), ("SECOND", ["TOLD"])):
        found = json.loads(told[name][0])
        assert found == {
            "id": "r1",
            "parameters": parameters,
            "timeout": 90_000_000,
            "correlation": 17,
            "flags": 3,
            "outputs": outputs,
        }


@by_the_server
def test_priority_reaches_the_steps(lab: Lab) -> None:
    """Which no model can see: only the queue."""
    seen = []
    model = lab.engine.repository.catalogue.find("mix")
    submit = model.submit

    def note(request, on_response):
        seen.append(request.priority)
        return submit(request, on_response)

    model.submit = note
    try:
        lab.ask("diamond", {"IN": floats(1)}, priority=2)
    finally:
        del model.submit
    assert seen == [2, 2]


@pytest.mark.parametrize(
    ("parameters", "correlation", "flags"),
    [
        ({}, 5, 1),
        ({"sequence_id": 9}, 9, 1),
        ({"sequence_id": "nine", "sequence_start": False, "sequence_end": True}, "nine", 2),
        ({"sequence_start": False}, 5, 0),
    ],
)
def test_a_step_may_name_the_sequence_of_those_after_it(lab: Lab, parameters, correlation, flags) -> None:
    request = request_of("named", {"IN": floats(1)}, parameters=parameters, correlation_id=5, flags=1)

    async def whole() -> InferenceResponse:
        return await lab.engine.open("named").infer(request)

    response = lab.run(whole())
    assert response.error is None, response.error
    texts = {output.name: bytes(output.data)[4:] for output in response.outputs}
    for name in ("FIRST", "SECOND"):
        told = json.loads(texts[name])
        assert (told["correlation"], told["flags"]) == (correlation, flags)
    named = {"sequence_id": correlation, "sequence_start": bool(flags & 1), "sequence_end": bool(flags & 2)}
    assert response.parameters == named
    response.release()
    lab.run(nothing_held(lab.engine))


@pytest.mark.spec("srv-S19", "srv-R17")
def test_steps_that_do_not_need_each_other_run_side_by_side(lab: Lab, tmp_path) -> None:
    first, second = Gate(tmp_path, "first"), Gate(tmp_path, "second")

    async def both() -> dict[str, np.ndarray]:
        arrays = {
            "CODE1": function(f"pass_gate({str(tmp_path)!r}, 'first')\nreturn [text('a')]"),
            "CODE2": function(f"pass_gate({str(tmp_path)!r}, 'second')\nreturn [out(7)]"),
        }
        asked = asyncio.ensure_future(ensembles.ask(lab.engine, "pair", arrays))
        await reached(first)
        await reached(second)
        first.open()
        second.open()
        return await asked

    outputs = lab.run(both())
    assert outputs["TEXT"].tolist() == [b"a"]
    assert outputs["OUT"].tolist() == [7]
    lab.run(nothing_held(lab.engine))


@pytest.mark.spec("srv-S19")
def test_requests_pass_each_other(lab: Lab, tmp_path) -> None:
    """One request waits in its first step while another runs through both."""
    gate = Gate(tmp_path, "slow")

    async def run() -> None:
        slow = {
            "CODE1": function(f"pass_gate({str(tmp_path)!r}, 'slow')\nreturn [out(1)]"),
            "CODE2": function("return [out(2)]"),
        }
        fast = {"CODE1": function("return [out(3)]"), "CODE2": function("return [out(*array(request, 'IN'), 4)]")}
        waiting = asyncio.ensure_future(ensembles.ask(lab.engine, "row", slow))
        await reached(gate)
        assert (await ensembles.ask(lab.engine, "row", fast))["OUT"].tolist() == [3, 4]
        assert not waiting.done()
        gate.open()
        assert (await waiting)["OUT"].tolist() == [2]

    lab.run(run())  # fmt: skip


@pytest.mark.spec("srv-R17")
def test_statistics_of_the_ensemble_and_of_its_parts(lab: Lab) -> None:
    ensemble, mix = lab.engine.repository.catalogue.find("diamond"), lab.engine.repository.catalogue.find("mix")
    before = (ensemble.statistics.success_count, ensemble.statistics.execution_count, mix.statistics.success_count)
    ns = ensemble.statistics.success_ns
    lab.ask("diamond", {"IN": floats(1)})
    after = (ensemble.statistics.success_count, ensemble.statistics.execution_count, mix.statistics.success_count)
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 2]
    assert ensemble.statistics.success_ns > ns
    assert ensemble.statistics.queue_ns == 0
    assert ensemble.statistics.compute_infer_ns == 0
    assert ensemble.pending_count == 0
