"""The lives of ensembles and of their parts: who is loaded with whom, what happens without a part, and when it is back."""

import asyncio
import json
import textwrap

import numpy as np
import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.model.model import ModelState
from pybackend.sandbox.grant import Grant
from tests.integration.models.conftest import running_engine
from tests.support.engine import unload
from tests.support.ensembles import ask, floats, held, nothing_held, step, write_ensemble
from tests.support.ensembles import refusal as refusal_of
from tests.support.gates import GATE, Gate
from tests.support.model_control import BROKEN, CONFIG, gone, refusal, until
from tests.support.repositories import tensors, write_model
from tests.support.streams import DECOUPLED


def adding(number: float, gate: str = "") -> str:
    """A model that adds a number; one that meets the number -1 in its input waits at a gate before."""
    return f"""
    import os, time

    {textwrap.indent(GATE, "    ").strip()}

    class TritonPythonModel:
        def initialize(self, args):
            with open(os.path.join(os.environ["MARKS"], args["model_name"]), "a") as marks:
                print("begin", {number}, args["model_version"], file=marks)

        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                if "{gate}" and -1 in array:
                    pass_gate(os.environ["MARKS"], "{gate}")
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + np.float32({number}))]))
            return answers
    """


def chain(repository, name, *models, versions=(), **options):
    """An ensemble that runs models one after another."""
    tensors = ["IN", *(f"x{number}" for number in range(1, len(models))), "OUT"]
    versions = dict(enumerate(versions))
    steps = [
        step(model, {"IN": tensors[i]}, {"OUT": tensors[i + 1]}, versions.get(i, -1)) for i, model in enumerate(models)
    ]
    return write_ensemble(repository, name, steps, **options)


def table(engine):
    return {row.name: row.status for row in engine.repository.catalogue.table()}


def out(run, engine, name, *values):
    return run(ask(engine, name, {"IN": floats(*values)}))["OUT"].tolist()


# --- loading --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("srv-R19", "srv-R17")
def test_at_start_parts_come_before_ensembles(repository, marks):
    """Whatever their names, and with one load at a time."""
    for name in ("z1", "m"):
        write_model(repository, name, adding(1), CONFIG)
    chain(repository, "a", "b", "z1")
    chain(repository, "b", "m", "y")
    chain(repository, "y", "z1")
    with running_engine(repository, model_load_count=1) as (engine, run):
        assert set(table(engine).values()) == {"READY"}
        assert out(run, engine, "a", 1) == [4]
        assert run(engine.is_ready())


def test_parts_are_loaded_side_by_side(repository, start, marks):
    for name in ("a", "b"):
        write_model(
            repository,
            name,
            """
            import os, time

            class TritonPythonModel:
                execute = list

                def initialize(self, args):
                    marks = os.environ["MARKS"]
                    open(os.path.join(marks, args["model_name"]), "a").close()
                    end = time.monotonic() + 20
                    while len(os.listdir(marks)) < 2:  # the other one is being loaded, too
                        assert time.monotonic() < end
                        time.sleep(0.01)
            """,
            CONFIG,
        )
    chain(repository, "e", "a", "b")
    engine, run = start()
    run(engine.control.load("e"))
    assert set(table(engine).values()) == {"READY"}


@pytest.mark.spec("srv-R19", "srv-H28")
def test_a_load_of_an_ensemble_loads_its_parts(repository, start, marks):
    for name in ("a", "b", "c"):
        write_model(repository, name, adding(1), CONFIG)
    chain(repository, "inner", "a", "b")
    chain(repository, "outer", "inner", "a")
    engine, run = start()
    run(engine.control.load("outer"))
    assert table(engine) == dict.fromkeys(["a", "b", "inner", "outer"], "READY")
    assert out(run, engine, "outer", 1) == [4]
    assert marks("a") == ["begin 1 1"]
    first = engine.repository.catalogue.find("a")
    run(engine.control.load("outer"))
    assert engine.repository.catalogue.find("a") is first


@pytest.mark.spec("srv-R19")
def test_parts_of_models_named_at_start(repository, start, marks):
    for name in ("a", "b"):
        write_model(repository, name, adding(1), CONFIG)
    chain(repository, "e", "a")
    chain(repository, "f", "a", "e")
    engine, _run = start("f", "e")
    assert table(engine) == dict.fromkeys(["a", "e", "f"], "READY")
    assert marks("a") == ["begin 1 1"]


def test_no_process_is_started_for_an_ensemble(repository, start, marks):
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "a")
    engine, _run = start("e")
    assert engine.repository.catalogue.find("e").instances == ()


@pytest.mark.spec("srv-R01", "srv-R17")
def test_an_ensemble_without_a_version_directory_is_version_1(repository, start, marks, caplog):
    write_model(repository, "a", adding(1), CONFIG)
    directory = chain(repository, "e", "a")
    (directory / "1").rmdir()
    engine, run = start("e")
    assert engine.repository.catalogue.find("e").version == "1"
    assert out(run, engine, "e", 1) == [2]
    assert f"ensemble 'e' has no version directory in {directory}: it is version 1" in caplog.text
    (directory / "3").mkdir()
    run(engine.control.load("e"))
    assert engine.repository.catalogue.find("e").version == "3"


@pytest.mark.spec("srv-R17")
def test_a_step_may_want_a_version(repository, start, marks, snapshot):
    write_model(repository, "a", adding(1), CONFIG + "version_policy { all {} }")
    write_model(repository, "a", adding(10), None, version=2)
    chain(repository, "newest", "a")
    chain(repository, "first", "a", versions=(1,))
    chain(repository, "third", "a", versions=(3,))
    chain(repository, "zero", "a", versions=(0,))
    engine, run = start("newest", "first")
    assert out(run, engine, "newest", 1) == [11]
    assert out(run, engine, "first", 1) == [2]
    error = refusal(run, engine.control.load("third"))
    assert (error.code, error.message) == (
        ErrorCode.INVALID_ARG,
        "load failed for model 'third': ensemble 'third' depends on 'a' whose required version 3 is not loaded.\n",
    )
    error = refusal(run, engine.control.load("zero"))
    assert "depends on 'a' whose required version 0 is not loaded" in error.message
    assert error.message == snapshot
    # Another version comes: who wants the newest gets it.
    write_model(repository, "a", adding(100), None, version=3)
    run(engine.control.load("a"))
    assert out(run, engine, "newest", 1) == [101]
    assert out(run, engine, "third", 1) == [101]
    assert out(run, engine, "first", 1) == [2]


# --- what cannot be loaded ------------------------------------------------------------------------------------------


@pytest.mark.spec("srv-R17")
def test_parts_that_are_nowhere(repository, start, marks):
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "y", "a", "x")
    engine, run = start()
    error = refusal(run, engine.control.load("e"))
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(
        "load failed for model 'e': ensemble e contains models that are not available or ambiguous: x, y ("
    )
    assert "there is no directory 'x' in" in error.message
    assert error.message.endswith("\n")
    assert [row.name for row, _ in engine.repository.catalogue.known()] == ["a", "e"]
    assert not run(engine.is_ready_by_name("e"))


@pytest.mark.spec("srv-R17")
def test_parts_that_are_nowhere_at_start(repository, marks):
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "y", "a", "x")
    with running_engine(repository) as (engine, _run):
        assert table(engine) == {
            "a": "READY",
            "e": "UNAVAILABLE: Invalid argument: ensemble e contains models that are not available or ambiguous: x, y. Load a "
            "model of that name, or correct model_name in the step",
        }


@pytest.mark.spec("srv-R17")
def test_parts_that_cannot_be_loaded(repository, start, marks):
    write_model(repository, "a", BROKEN, CONFIG)
    chain(repository, "e", "a")
    chain(repository, "f", "e")
    engine, run = start()
    error = refusal(run, engine.control.load("f"))
    text = "ensemble '{}' depends on '{}' which has no loaded version. Model '{}' loading failed with error: "
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(
        f"load failed for model 'f': {text.format('f', 'e', 'e')}{text.format('e', 'a', 'a')}"
    )
    assert "version 1 is at UNAVAILABLE state: Internal: ValueError: the weights are missing" in error.message
    # They heal as soon as the part does, which nobody need tell them.
    write_model(repository, "a", adding(1), None)
    run(engine.control.load("a"))
    assert set(table(engine).values()) == {"READY"}
    assert out(run, engine, "f", 1) == [2]


def test_a_part_whose_configuration_cannot_be_read(repository, start, marks):
    write_model(repository, "a", adding(1), "nonsense")
    chain(repository, "e", "a")
    engine, run = start()
    error = refusal(run, engine.control.load("e"))
    assert error.message.startswith(
        "load failed for model 'e': ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed with "
        "error: Invalid argument: failed to read text proto from"
    )


@pytest.mark.spec("srv-R17")
def test_circles(repository, start, marks, snapshot):
    write_model(repository, "m", adding(1), CONFIG)
    chain(repository, "a", "m", "b")
    chain(repository, "b", "c")
    chain(repository, "c", "a")
    chain(repository, "self", "self")
    chain(repository, "outside", "a")
    expected = {
        "a": "a -> ... -> c -> a. The steps lead round: a -> b -> c -> a",
        "b": "b -> ... -> a -> b. The steps lead round: b -> c -> a -> b",
        "self": "self -> ... -> self -> self. The steps lead round: self -> self",
    }
    with running_engine(repository) as (engine, run):
        found = table(engine)
        for name, circle in expected.items():
            assert found[name] == f"UNAVAILABLE: Invalid argument: circular dependency between ensembles: {circle}"
        assert found["outside"].startswith(
            "UNAVAILABLE: Invalid argument: ensemble 'outside' depends on 'a' which has no loaded version. Model 'a' "
            "loading failed with error: Invalid argument: circular dependency between ensembles: a -> .."
        )
        assert found["outside"] == snapshot
        assert found["m"] == "READY"
    engine, run = start()
    for name, circle in expected.items():
        error = refusal(run, engine.control.load(name))
        assert (error.code, error.message) == (
            ErrorCode.INVALID_ARG,
            f"load failed for model '{name}': circular dependency between ensembles: {circle}\n",
        )
    assert marks("m").count("begin 1 1") == 1  # a circle is seen before parts are loaded
    assert "circular dependency between ensembles: a" in refusal(run, engine.control.load("outside")).message


def test_a_circle_through_what_is_loaded(repository, start, marks, snapshot):
    write_model(repository, "m", adding(1), CONFIG)
    chain(repository, "a", "m")
    chain(repository, "b", "a")
    engine, run = start("b")
    (repository / "b/config.pbtxt").write_text("what is loaded counts, not what is on disk")
    chain(repository, "a", "b")
    error = refusal(run, engine.control.load("a"))
    assert error.message.startswith("load failed for model 'a': circular dependency between ensembles: a -> ..")
    assert error.message == snapshot
    assert out(run, engine, "b", 1) == [2]


@pytest.mark.spec("srv-R17", "srv-R08")
def test_an_ensemble_that_does_not_fit_leaves_the_one_that_serves(repository, start, marks):
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "a")
    engine, run = start("e")
    first = engine.repository.catalogue.find("e")
    chain(repository, "e", "a", inputs=tensors(IN=("TYPE_FP32", [2, 2])))
    error = refusal(run, engine.control.load("e"))
    assert error.message.startswith(
        "load failed for model 'e': in ensemble e, ensemble tensor IN: inconsistent shape: [2,2] is inferred from model e"
    )
    write_ensemble(repository, "e", [])
    error = refusal(run, engine.control.load("e"))
    assert (error.code, error.message.split(". ")[0]) == (
        ErrorCode.INVALID_ARG,
        "load failed for model 'e': must specify 'step' for ensemble 'e'",
    )
    assert engine.repository.catalogue.find("e") is first
    assert out(run, engine, "e", 1) == [2]
    assert run(engine.is_ready())
    chain(repository, "e", "a", "a")
    run(engine.control.load("e"))
    assert out(run, engine, "e", 1) == [3]


@pytest.mark.spec("srv-H26")
def test_an_ensemble_with_a_configuration_of_its_own(repository, start, marks):
    write_model(repository, "a", adding(1), CONFIG)
    engine, run = start()
    config = """{
        "platform": "ensemble",
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
        "ensemble_scheduling": {"step": [
            {"model_name": "a", "model_version": -1, "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}
        ]}
    }"""
    run(engine.control.load("e", config, {"file:1/notes.txt": b""}))
    assert out(run, engine, "e", 1) == [2]
    run(engine.control.unload("e", unload_dependents=True))
    run(until(lambda: set(table(engine).values()) == {"UNAVAILABLE: unloaded"}))


def grant(*control, overrides=True):
    """Of a model that may control these models."""
    return Grant("caller", "standard", True, True, True, {}, control=control, overrides=overrides)


def test_parts_come_and_go_with_an_ensemble_that_a_model_may_control(repository, start, marks):
    for name in ("a", "b"):
        write_model(repository, name, adding(1), CONFIG)
    chain(repository, "e", "a", "b")
    engine, run = start()
    caller = grant("e")
    assert "may not load or unload model 'a'" in refusal(run, engine.control.load("a", grant=caller)).message
    run(engine.control.load("e", grant=caller))
    assert out(run, engine, "e", 1) == [3]
    assert "may not load or unload model 'a'" in refusal(run, engine.control.unload("a", grant=caller)).message
    run(engine.control.unload("e", unload_dependents=True, grant=caller))
    run(until(lambda: set(table(engine).values()) == {"UNAVAILABLE: unloaded"}))


def test_an_ensemble_that_a_model_brings_loads_no_parts_that_it_may_not_control(repository, start, marks):
    for name in ("a", "b"):
        write_model(repository, name, adding(1), CONFIG)
    chain(repository, "e", "a")
    engine, run = start("e")
    config = json.dumps(
        {
            "platform": "ensemble",
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
            "ensemble_scheduling": {
                "step": [
                    {"model_name": "b", "model_version": -1, "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}
                ]
            },
        }
    )
    error = refusal(run, engine.control.load("e", config, grant=grant("e")))
    assert "model 'caller' may not load or unload model 'b'" in error.message
    assert (
        "--allow-model-overrides"
        in refusal(run, engine.control.load("e", config, grant=grant("e", overrides=False))).message
    )
    assert out(run, engine, "e", 1) == [2]
    run(engine.control.load("e", config, grant=grant("e", "b")))
    assert out(run, engine, "e", 1) == [2]
    assert "b" in table(engine)
    run(engine.control.load("e"))
    assert engine.repository.catalogue.find("e").part_names == {"a"}


# --- parts that come and go -----------------------------------------------------------------------------------------


@pytest.mark.spec("srv-R19")
def test_without_a_part_an_ensemble_is_unavailable_until_it_is_back(repository, start, marks):
    for name in ("a", "b"):
        write_model(repository, name, adding(1), CONFIG)
    chain(repository, "inner", "a", "b")
    chain(repository, "outer", "inner")
    engine, run = start("outer", "a", "b")
    models = [engine.repository.catalogue.find("inner"), engine.repository.catalogue.find("outer")]
    run(engine.control.unload("b"))
    reason = (
        "ensemble 'inner' depends on 'b' which has no loaded version. 'b' was unloaded: load it again, or load 'inner'"
    )
    assert table(engine)["inner"].startswith(f"UNAVAILABLE: Invalid argument: {reason}")
    assert table(engine)["outer"].startswith(
        "UNAVAILABLE: Invalid argument: ensemble 'outer' depends on 'inner' which has no"
    )
    for name in ("inner", "outer"):
        assert not run(engine.is_ready_by_name(name))
        error = run(refusal_of(engine, name, {"IN": floats(1)}))
        assert error.code is ErrorCode.NOT_FOUND
        assert error.message.startswith(f"Request for unknown model: '{name}' has no available versions")
        assert f"ensemble '{name}' depends on" in error.message
    # It was unloaded on purpose: the server goes on to serve the rest.
    run(gone(engine, engine.repository.catalogue.known_versions("b")[0]))
    assert run(engine.is_ready())
    run(engine.control.load("b"))
    assert [engine.repository.catalogue.find("inner"), engine.repository.catalogue.find("outer")] == models
    assert out(run, engine, "outer", 1) == [3]
    assert run(engine.is_ready_by_name("outer"))
    run(engine.control.unload("a"))
    assert not run(engine.is_ready_by_name("outer"))
    run(engine.control.load("outer"))  # brings what it lacks
    assert out(run, engine, "outer", 1) == [3]


@pytest.mark.spec("srv-R19", "srv-R07")
def test_a_part_is_replaced_under_load(repository, start, marks):
    """Every request is answered, and each by one version of the part in both of its steps."""
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "a", "a")
    engine, run = start("e")
    old = engine.repository.catalogue.find("a")

    async def replace():
        answers = []
        loading = asyncio.create_task(engine.control.load("a"))
        while not loading.done():
            found = await asyncio.gather(*(ask(engine, "e", {"IN": floats(0)}) for _ in range(4)))
            answers += [outputs["OUT"].tolist() for outputs in found]
        await loading
        await gone(engine, old)
        return answers

    write_model(repository, "a", adding(10), None)
    answers = run(replace())
    assert [2] in answers
    assert all(answer in ([2], [20]) for answer in answers)
    assert out(run, engine, "e", 0) == [20]


def test_a_part_that_changes_what_it_takes(repository, start, marks):
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "a")
    engine, run = start("e")
    (repository / "a/config.pbtxt").write_text(CONFIG.replace("TYPE_FP32", "TYPE_FP64"))
    run(engine.control.load("a"))
    assert table(engine)["e"].startswith(
        "UNAVAILABLE: Invalid argument: in ensemble e, ensemble tensor IN: inconsistent data type"
    )
    assert not run(engine.is_ready())  # nobody wanted that
    (repository / "a/config.pbtxt").write_text(CONFIG)
    run(engine.control.load("a"))
    assert out(run, engine, "e", 1) == [2]
    assert run(engine.is_ready())


@pytest.mark.spec("srv-R18", "srv-R19")
def test_a_part_that_begins_to_stream(repository, start, marks):
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "a")
    chain(repository, "f", "e")
    engine, run = start("f")
    assert not engine.repository.catalogue.find("f").config.decoupled
    (repository / "a/config.pbtxt").write_text(CONFIG + DECOUPLED)
    run(engine.control.load("a"))
    assert [engine.repository.catalogue.find(name).config.decoupled for name in "aef"] == [True, True, True]
    (repository / "a/config.pbtxt").write_text(CONFIG)
    run(engine.control.load("a"))
    assert not engine.repository.catalogue.find("f").config.decoupled


@pytest.mark.spec("srv-R19")
def test_requests_that_have_begun_still_find_their_parts(tmp_path, repository, start, marks):
    """A part is unloaded between their steps, and so is all the rest."""
    write_model(repository, "slow", adding(1, gate="slow"), CONFIG)
    write_model(repository, "last", adding(10), CONFIG)
    chain(repository, "inner", "last")
    chain(repository, "outer", "slow", "inner")
    engine, run = start("outer")
    gate = Gate(tmp_path / "marks", "slow")

    async def unload():
        asked = [asyncio.ensure_future(ask(engine, "outer", {"IN": floats(-1, i)})) for i in range(3)]
        await until(lambda: gate.arrivals)
        last = engine.repository.catalogue.find("last")
        await engine.control.unload("last")
        assert last.state is ModelState.UNLOADING
        with pytest.raises(InferenceError):
            engine.repository.catalogue.find("last")
        assert not await engine.is_ready_by_name("outer")
        assert (await refusal_of(engine, "outer", {"IN": floats(1)})).code is ErrorCode.NOT_FOUND
        for name in ("outer", "inner", "slow"):
            await engine.control.unload(name)
        assert not any(one.done() for one in asked)
        gate.open()
        assert [outputs["OUT"].tolist() for outputs in await asyncio.gather(*asked)] == [[10, 11 + i] for i in range(3)]
        await until(lambda: set(table(engine).values()) == {"UNAVAILABLE: unloaded"})
        assert [held(model) for model in engine.repository.catalogue.models()] == [{}] * 4

    run(unload())


def test_a_part_is_unloaded_while_its_queue_is_full(tmp_path, repository, start, marks):
    """Those that it has taken are answered to the end of the ensemble; others were told at once."""
    queue = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 4 } }"
    write_model(repository, "a", adding(1, gate="slow"), CONFIG + queue + " instance_group { count: 1 kind: KIND_CPU }")
    write_model(repository, "b", adding(10), CONFIG + "max_batch_size: 1")
    chain(repository, "e", "a", "b", extra="max_batch_size: 1")
    engine, run = start("e")
    gate = Gate(tmp_path / "marks", "slow")

    async def fill():
        x = {"IN": floats(-1).reshape(1, 1)}
        first = asyncio.ensure_future(ask(engine, "e", x))
        await until(lambda: gate.arrivals)
        more = [asyncio.ensure_future(ask(engine, "e", x)) for _ in range(20)]
        await until(lambda: sum(one.done() for one in more) >= 15)
        for name in ("a", "e", "b"):
            await engine.control.unload(name)
        gate.open()
        answers = await asyncio.gather(first, *more, return_exceptions=True)
        await until(lambda: set(table(engine).values()) == {"UNAVAILABLE: unloaded"})
        assert [held(model) for model in engine.repository.catalogue.models()] == [{}] * 3
        return answers

    answers = run(fill())
    refused = [answer for answer in answers if isinstance(answer, InferenceError)]
    assert [answer["OUT"].tolist() for answer in answers if answer not in refused] == [[[10]]] * (21 - len(refused))
    assert len(refused) in {15, 16}  # one more may have been sent ahead
    for error in refused:
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.message.startswith("in ensemble 'e', [request id: <id_unknown>] Exceeds maximum queue size")


# --- parts that go with their ensemble ------------------------------------------------------------------------------


@pytest.mark.spec("srv-H28")
def test_parts_go_with_the_ensemble_if_nobody_else_wants_them(repository, start, marks):
    for name in ("mine", "shared", "wanted"):
        write_model(repository, name, adding(1), CONFIG)
    chain(repository, "inner", "mine", "shared")
    chain(repository, "e", "inner", "wanted")
    chain(repository, "f", "shared")
    engine, run = start("wanted")
    run(engine.control.load("e"))
    run(engine.control.load("f"))
    run(engine.control.unload("e", unload_dependents=True))
    run(until(lambda: "UNLOADING" not in table(engine).values()))
    assert table(engine) == {
        "e": "UNAVAILABLE: unloaded",
        "inner": "UNAVAILABLE: unloaded",
        "mine": "UNAVAILABLE: unloaded",
        "f": "READY",
        "shared": "READY",
        "wanted": "READY",
    }
    run(engine.control.unload("f", unload_dependents=True))
    run(until(lambda: table(engine)["shared"] == "UNAVAILABLE: unloaded"))
    assert run(engine.is_ready())


@pytest.mark.spec("srv-H28")
def test_parts_stay_unless_it_is_said(repository, start, marks):
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "a")
    engine, run = start()
    run(engine.control.load("e"))
    run(engine.control.unload("e"))
    run(until(lambda: table(engine)["e"] == "UNAVAILABLE: unloaded"))
    assert table(engine)["a"] == "READY"
    # Somebody asks for the part itself: then it is no mere part any more.
    run(engine.control.load("e"))
    run(engine.control.load("a"))
    run(engine.control.unload("e", unload_dependents=True))
    run(until(lambda: table(engine)["e"] == "UNAVAILABLE: unloaded"))
    assert table(engine)["a"] == "READY"


def test_the_ensembles_of_a_part_do_not_go_with_it(repository, start, marks):
    write_model(repository, "a", adding(1), CONFIG)
    chain(repository, "e", "a")
    engine, run = start()
    run(engine.control.load("e"))
    run(engine.control.unload("a", unload_dependents=True))
    assert table(engine)["e"].startswith(
        "UNAVAILABLE: Invalid argument: ensemble 'e' depends on 'a' which has no loaded"
    )
    run(engine.control.unload("e"))
    assert table(engine)["e"] in {"UNLOADING", "UNAVAILABLE: unloaded"}
    run(until(lambda: table(engine)["e"] == "UNAVAILABLE: unloaded"))
    run(engine.control.load("a"))
    assert table(engine)["e"] == "UNAVAILABLE: unloaded"  # and does not come back by itself
    assert run(engine.is_ready())


# --- the end --------------------------------------------------------------------------------------------------------


def test_the_end_of_the_server_waits_for_requests_between_steps(tmp_path, repository, start, marks):
    write_model(repository, "slow", adding(1, gate="slow"), CONFIG)
    write_model(repository, "last", adding(10), CONFIG)
    chain(repository, "e", "slow", "last")
    engine, run = start("e")
    gate = Gate(tmp_path / "marks", "slow")

    async def stop():
        asked = asyncio.ensure_future(ask(engine, "e", {"IN": floats(-1)}))
        await until(lambda: gate.arrivals)
        ending = asyncio.ensure_future(engine.repository.unload_all(asyncio.get_running_loop().time() + 20))
        await asyncio.sleep(0.05)
        assert not ending.done()
        gate.open()
        assert (await asked)["OUT"].tolist() == [10]
        assert await ending

    run(stop())


def test_the_end_of_the_server_does_not_wait_for_ever(tmp_path, repository, start, marks):
    write_model(repository, "slow", adding(1, gate="slow"), CONFIG)
    chain(repository, "e", "slow", "slow")
    engine, run = start("e")
    gate = Gate(tmp_path / "marks", "slow")

    async def stop():
        asked = asyncio.ensure_future(refusal_of(engine, "e", {"IN": np.full(50_000, -1, np.float32)}))
        await until(lambda: gate.arrivals)
        assert not await engine.repository.unload_all(asyncio.get_running_loop().time() + 0.3)
        error = await asked
        assert error.message.startswith("in ensemble 'e', ")
        assert error.code in {ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE}

    run(stop())


def test_an_ensemble_is_given_up_when_its_time_is_over(tmp_path, repository, start, marks):
    """Its part goes on to serve others."""
    write_model(repository, "slow", adding(1, gate="slow"), CONFIG)
    chain(repository, "e", "slow", "slow")
    engine, run = start("e")
    gate = Gate(tmp_path / "marks", "slow")

    async def give_up():
        asked = asyncio.ensure_future(refusal_of(engine, "e", {"IN": floats(-1)}))
        await until(lambda: gate.arrivals)
        assert not await unload(engine, "e", 0.1, 1)
        error = await asked
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.message == "in ensemble 'e', the request to model 'e' was still running when it was unloaded"
        gate.open()
        await nothing_held(engine)
        assert (await ask(engine, "slow", {"IN": floats(1)}))["OUT"].tolist() == [2]

    run(give_up())
