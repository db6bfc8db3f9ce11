"""Models that are loaded, replaced and unloaded while the engine serves."""

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, RequestFlags
from pybackend.model.model import ModelState
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor, output_array
from tests.support.gates import Gate
from tests.support.model_control import ALL_VERSIONS, BROKEN, CONFIG, answer, answering, gone, refusal, until
from tests.support.repositories import write_model


def test_nothing_is_loaded_before_somebody_asks(repository, start, marks):
    for name in ("a", "b"):
        write_model(repository, name, answering(1), CONFIG)
    engine, run = start()
    assert run(engine.is_ready())
    assert list(engine.repository.catalogue.models()) == []
    with pytest.raises(InferenceError, match="Request for unknown model: 'a' is not found"):
        engine.repository.catalogue.find("a")
    run(engine.control.load("a"))
    assert run(answer(engine, "a")) == 1
    assert [(model.name, model.version) for model in engine.repository.catalogue.models()] == [("a", "1")]
    assert marks("b") == []


def test_models_named_at_start_are_loaded(repository, start, marks):
    for name in ("a", "b", "c"):
        write_model(repository, name, answering(1), CONFIG)
    engine, _run = start("a", "c")
    assert [model.name for model in engine.repository.catalogue.models()] == ["a", "c"]
    assert marks("b") == []


def test_names_at_start_that_do_not_exist(repository, start):
    write_model(repository, "a", answering(1), CONFIG)
    engine, run = start("a", "b")
    rows = {row.name: row.status for row in engine.repository.catalogue.table()}
    assert rows["a"] == "READY"
    assert rows["b"] == f"UNAVAILABLE: Internal: there is no directory 'b' in {repository}"
    assert not run(engine.is_ready())
    # It is there later, or nobody wants it any more.
    write_model(repository, "b", answering(2), CONFIG)
    run(engine.control.load("b"))
    assert run(engine.is_ready())


def test_without_control_nothing_changes(repository, marks):
    write_model(repository, "a", answering(1), CONFIG)
    with running_engine(repository) as (engine, run):
        write_model(repository, "b", answering(1), CONFIG)
        for change in (engine.control.load("a"), engine.control.load("b"), engine.control.unload("a")):
            error = refusal(run, change)
            assert error.code is ErrorCode.UNAVAILABLE
            assert error.message.startswith("explicit model load / unload is not allowed if polling is enabled")
            assert "--model-control-mode=explicit" in error.message
        assert run(engine.is_ready_by_name("a"))
        assert run(answer(engine, "a")) == 1
    assert marks("a") == ["begin 1 1", "end 1"]


def test_requests_during_a_reload_are_all_answered(tmp_path, repository, start, marks):
    directory = write_model(repository, "a", answering(1), CONFIG + "instance_group { count: 2 }")
    engine, run = start("a")
    old = engine.repository.catalogue.find("a")

    gate = Gate(tmp_path / "marks", "slow")

    async def reload_under_load():
        slow = asyncio.create_task(answer(engine, "a", 1))
        await until(lambda: gate.arrivals)
        answers = []
        loading = asyncio.create_task(engine.control.load("a"))
        while not loading.done():
            answers.append(await answer(engine, "a"))
        await loading
        assert old.state is ModelState.UNLOADING
        assert not slow.done()
        assert await answer(engine, "a") == 2
        gate.open()
        assert await slow == 1
        return answers

    write_model(repository, "a", answering(2), None)
    answers = run(reload_under_load())
    assert answers[0] == 1
    assert answers == sorted(answers), "an answer of the old version after one of the new"
    run(gone(engine, old))
    assert sorted(marks("a")) == ["begin 1 1", "begin 1 1", "begin 2 1", "begin 2 1", "end 1", "end 1"]
    assert directory.exists()


def test_a_reload_that_fails_leaves_what_serves(repository, start, marks):
    write_model(repository, "a", answering(1), CONFIG)
    engine, run = start("a")
    model = engine.repository.catalogue.find("a")
    write_model(repository, "a", BROKEN, None)
    for _ in range(2):  # files that could not be loaded are not taken for loaded ones
        error = refusal(run, engine.control.load("a"))
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message.startswith(
            "load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: ValueError: the weights are missing"
        )
        assert error.message.endswith(";\n")
        assert engine.repository.catalogue.find("a") is model
        assert run(answer(engine, "a")) == 1
        assert run(engine.is_ready())
    (repository / "a/config.pbtxt").write_text("nonsense")
    error = refusal(run, engine.control.load("a"))
    assert error.code is ErrorCode.INTERNAL
    assert error.message.startswith(
        "failed to load 'a', failed to poll from model repository: failed to read text proto from"
    )
    assert run(answer(engine, "a")) == 1
    write_model(repository, "a", answering(3), CONFIG)
    run(engine.control.load("a"))
    assert run(answer(engine, "a")) == 3


def test_one_version_that_fails_keeps_all_new_ones_from_serving(repository, start, marks):
    write_model(repository, "a", answering(1), ALL_VERSIONS)
    engine, run = start("a")
    write_model(repository, "a", answering(2), None, version=2)
    write_model(repository, "a", BROKEN, None, version=3)
    error = refusal(run, engine.control.load("a"))
    assert "version 3 is at UNAVAILABLE state: " in error.message
    assert "version 2" not in error.message
    assert [model.version for model in engine.repository.catalogue.ready_versions("a")] == ["1"]
    run(engine.control.unload("a"))
    assert "begin 2 2" in marks("a")


def test_versions_that_have_not_changed_are_left_alone(repository, start, marks):
    write_model(repository, "a", answering(1), ALL_VERSIONS)
    engine, run = start("a")
    first = engine.repository.catalogue.find("a")
    run(engine.control.load("a"))
    assert engine.repository.catalogue.find("a") is first
    write_model(repository, "a", answering(2), None, version=2)
    run(engine.control.load("a"))
    assert engine.repository.catalogue.find("a", "1") is first
    assert run(answer(engine, "a")) == 2
    assert run(answer(engine, "a", version="1")) == 1
    assert marks("a") == ["begin 1 1", "begin 2 2"]
    # The policy leaves one of them.
    second = engine.repository.catalogue.find("a", "2")
    (repository / "a/config.pbtxt").write_text(CONFIG)
    run(engine.control.load("a"))
    run(gone(engine, first))
    assert engine.repository.catalogue.find("a") is second
    with pytest.raises(InferenceError, match="'a' version 1 is not at ready state"):
        engine.repository.catalogue.find("a", "1")
    assert [(model.version, model.state.value, model.reason) for model in engine.repository.catalogue.models()] == [
        ("1", "UNAVAILABLE", "unloaded"),
        ("2", "READY", ""),
    ]
    assert run(engine.is_ready())
    # And another configuration concerns all.
    (repository / "a/config.pbtxt").write_text(CONFIG + 'parameters { key: "x" value { string_value: "y" } }')
    run(engine.control.load("a"))
    assert engine.repository.catalogue.find("a") is not second


def test_a_model_that_does_not_live_any_more_is_loaded_anew(repository, start, marks):
    write_model(
        repository, "a", answering(1), CONFIG + 'parameters { key: "RESTART_LIMIT" value { string_value: "1" } }'
    )
    engine, run = start("a")
    model = engine.repository.catalogue.find("a")

    async def kill():
        async with asyncio.timeout(60):
            while model.failure is None:  # until it is not started again
                if model.instances[0].pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(model.instances[0].pid, 9)
                await asyncio.sleep(0.01)
        await engine.control.load("a")

    run(kill())
    assert engine.repository.catalogue.find("a") is not model
    assert run(answer(engine, "a")) == 1
    run(gone(engine, model))


def test_unload_begins_at_once_and_answers_what_was_taken(tmp_path, repository, start, marks):
    write_model(repository, "a", answering(1), CONFIG)
    engine, run = start("a")
    model = engine.repository.catalogue.find("a")
    gate = Gate(tmp_path / "marks", "slow")

    async def unload():
        slow = asyncio.create_task(answer(engine, "a", 1))
        await until(lambda: gate.arrivals)
        await engine.control.unload("a")
        assert not slow.done()
        assert model.state is ModelState.UNLOADING
        assert not await engine.is_ready()
        assert not await engine.is_ready_by_name("a")
        with pytest.raises(InferenceError, match="'a' has no available versions") as refused:
            engine.repository.catalogue.find("a")
        assert refused.value.code is ErrorCode.NOT_FOUND
        await engine.control.unload("a")  # is fine, and changes nothing
        gate.open()
        assert await slow == 1
        await gone(engine, model)
        assert await engine.is_ready()

    run(unload())
    assert marks("a") == ["begin 1 1", "end 1"]
    run(engine.control.unload("no_such_model"))
    run(engine.control.load("a"))
    assert run(answer(engine, "a")) == 1


def test_a_model_that_could_not_be_loaded_can_be_forgotten(repository, start):
    write_model(repository, "a", BROKEN, CONFIG)
    engine, run = start()
    assert refusal(run, engine.control.load("a")).message.startswith("load failed for model 'a': version 1 is at")
    assert not run(engine.is_ready())
    assert not run(engine.is_ready_by_name("a"))
    run(engine.control.unload("a"))
    assert run(engine.is_ready())
    assert list(engine.repository.catalogue.models()) == []


def test_loads_of_one_model_come_in_turn_and_those_of_several_together(repository, start, marks):
    for name in ("a", "b"):
        write_model(
            repository,
            name,
            """
            import os, time

            class TritonPythonModel:
                execute = list

                def initialize(self, args):
                    name, marks = args["model_name"], os.environ["MARKS"]
                    open(os.path.join(marks, name), "a").close()
                    end = time.monotonic() + 20
                    while len(os.listdir(marks)) < 2:  # the other one is being loaded, too
                        assert time.monotonic() < end
                        time.sleep(0.01)
                    with open(os.path.join(marks, name), "a") as file:
                        print("loaded", file=file)
            """,
            CONFIG,
        )
    engine, run = start()

    async def load():
        await asyncio.gather(engine.control.load("a"), engine.control.load("b"), engine.control.load("a"))

    run(load())
    assert marks("a") == marks("b") == ["loaded"]


def test_a_load_goes_on_when_nobody_waits_for_it_any_more(repository, start, marks):
    write_model(repository, "a", answering(1), CONFIG)
    engine, run = start()

    async def give_up():
        load = asyncio.create_task(engine.control.load("a"))
        await until(lambda: list(engine.repository.catalogue.models()))
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        assert load.cancelled()
        await until(lambda: engine.repository.catalogue.all_ready)

    run(give_up())
    assert run(answer(engine, "a")) == 1


def test_the_end_of_the_server_ends_loads(repository, start, marks):
    write_model(
        repository,
        "slow",
        "import time\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(60)\n",
        CONFIG,
    )
    engine, run = start()

    async def stop():
        load = asyncio.create_task(engine.control.load("slow"))
        await until(lambda: list(engine.repository.catalogue.models()))
        await engine.repository.unload_all(asyncio.get_running_loop().time() + 0.1)
        return await asyncio.gather(load, engine.control.load("slow"), return_exceptions=True)

    for error in run(stop()):
        assert isinstance(error, InferenceError)
        assert (error.code, error.message.split(":")[0]) == (ErrorCode.UNAVAILABLE, "the server is stopping")


def test_a_model_in_two_repositories_is_not_loaded(tmp_path, repository, start):
    write_model(repository, "a", answering(1), CONFIG)
    other = tmp_path / "other"
    write_model(other, "b", answering(1), CONFIG)
    engine, run = start("a", more_repositories=[other])
    run(engine.control.load("b"))
    write_model(other, "a", answering(2), CONFIG)
    error = refusal(run, engine.control.load("a"))
    assert error.message == (
        "failed to load 'a', failed to poll from model repository: model appears in two or more repositories: "
        f"{repository / 'a'}, {other / 'a'}"
    )
    assert run(answer(engine, "a")) == 1


def test_repositories_that_are_gone(repository, start):
    engine, run = start()
    Path(repository).rmdir()
    error = refusal(run, engine.control.load("a"))
    assert error.message.startswith("failed to load 'a', failed to poll from model repository: repository path is not")


def test_a_finalize_that_hangs_is_cut_short(repository, start, marks, caplog):
    code = """
    import threading

    class TritonPythonModel:
        execute = list

        def finalize(self):
            threading.Event().wait()
    """
    write_model(repository, "a", code, CONFIG)
    engine, run = start("a", finalize_timeout_s=0.2)
    model = engine.repository.catalogue.find("a")

    async def unload():
        await engine.control.unload("a")
        await gone(engine, model)

    run(unload())
    assert "instance 'a_0' missed its 0.2 s stop limit and is being killed" in caplog.text


def test_sequences_that_do_not_end_are_cut_short(repository, start, caplog):
    """A replaced version waits for its sequences as long as for ``finalize``, and their requests are refused
    afterwards."""
    batching = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    write_model(repository, "s", answering(1), CONFIG + batching)
    engine, run = start("s", finalize_timeout_s=0.2)

    async def send(flags):
        inputs = [input_tensor("IN", np.zeros(1, np.float32))]
        request = InferenceRequest("s", inputs=inputs)
        request.correlation_id, request.flags = 7, int(flags)
        response = await engine.open("s").infer(request)
        number = float(output_array(response, "OUT")[0])
        response.release()
        return number

    assert run(send(RequestFlags.SEQUENCE_START)) == 1
    old = engine.repository.catalogue.find("s")
    write_model(repository, "s", answering(2), None)
    run(engine.control.load("s"))
    assert old.state is ModelState.UNLOADING
    run(gone(engine, old))
    assert "model 's' version 1 was replaced 0.2 s ago, and its sequences that go on are cut short" in caplog.text
    assert refusal(run, send(0)).message == (
        "inference request for sequence 7 to model 's' must specify the START flag on the first request of the sequence. It began "
        "before the model was replaced, and was cut short when it had not ended 0.2 s later, the --exit-timeout-secs: start it again"
    )
    assert run(send(RequestFlags.SEQUENCE_START)) == 2


def test_a_model_that_has_failed_is_loaded_again_in_every_mode(repository, marks):
    write_model(repository, "broken", BROKEN, CONFIG)
    write_model(repository, "unread", answering(1), "no: such_field")
    write_model(repository, "well", answering(1), CONFIG)
    with running_engine(repository) as (engine, run):

        def load(name, **more):
            return engine.control.load(name, of_client=True, **more)

        assert not run(engine.is_ready())
        assert "the weights are missing" in refusal(run, load("broken")).message
        write_model(repository, "broken", answering(3), CONFIG)
        write_model(repository, "unread", answering(4), CONFIG)
        for change in (
            load("well"),
            load("nobody"),
            engine.control.load("broken"),  # a model's request
            load("broken", config_json="{}"),
            engine.control.unload("broken"),
        ):
            assert refusal(run, change).message.startswith("explicit model load / unload is not allowed")
        run(load("broken"))
        run(load("unread"))
        assert [run(answer(engine, name)) for name in ("broken", "unread")] == [3, 4]
        assert run(engine.is_ready())
        assert "is not allowed" in refusal(run, load("broken")).message


def test_the_index_says_why_the_last_load_failed(repository, start, marks):
    write_model(repository, "a", answering(1), "first: mistake")
    engine, run = start("a")

    def reason():
        (row,) = [row for row in run(engine.control.read_index()) if row.name == "a"]
        return row.reason

    assert 'has no field named "first"' in reason()
    write_model(repository, "a", answering(1), "second: mistake")
    refusal(run, engine.control.load("a"))
    assert 'has no field named "second"' in reason()


@pytest.mark.parametrize("change", ["code", "configuration"])
def test_the_index_says_that_a_change_has_failed(repository, start, marks, change):
    write_model(repository, "a", answering(1), CONFIG)
    engine, run = start("a")

    def row():
        (row,) = [row for row in run(engine.control.read_index()) if row.name == "a"]
        return row.state, row.reason

    assert row() == ("READY", "")
    if change == "code":
        write_model(repository, "a", BROKEN, CONFIG)
        reason = "ValueError: the weights are missing"
    else:
        write_model(repository, "a", answering(2), "no: such_field")
        reason = "failed to read text proto"
    # What a client brings is not on disk.
    refusal(run, engine.control.load("a", config_json="{", of_client=True))
    assert row() == ("READY", "")
    refusal(run, engine.control.load("a"))
    state, text = row()
    assert state == "READY"
    assert re.match(r"serves as before; the change at \d\d:\d\d failed: ", text)
    assert text.partition(" failed: ")[2].startswith(reason)
    assert run(answer(engine, "a")) == 1
    write_model(repository, "a", answering(2), CONFIG)
    run(engine.control.load("a"))
    assert row() == ("READY", "")
    assert run(answer(engine, "a")) == 2
    # An unloaded model has no change that matters.
    write_model(repository, "a", BROKEN, CONFIG)
    refusal(run, engine.control.load("a"))
    run(engine.control.unload("a"))
    run(until(lambda: [row.status for row in engine.repository.catalogue.table()] == ["UNAVAILABLE: unloaded"]))
