"""Ensembles whose steps share a process: they run there one after the other, and nothing else about them changes."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.connection import connected
from tests.support.ensembles import step, write_ensemble
from tests.support.gates import wait_until
from tests.support.inference import infer, infer_message
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

FLOATS = ("TYPE_FP32", [-1])
ONE = "instance_group { count: 1 kind: KIND_CPU }"
GROUP = 'parameters { key: "PROCESS_GROUP" value { string_value: "steps" } }'
SMALL, LARGE = np.arange(3, dtype=np.float32), np.arange(100_000, dtype=np.float32)
STEP = """
import json
import os
import threading
import time
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        (request,) = requests
        # A parameter of the request has the model's name, and says what it should do beside adding 1.
        what = json.loads(request.parameters() or "{}").get(self.name, "")
        inputs = {each.name(): each.as_numpy() for each in request.inputs()}
        data = inputs["IN"]
        result = data + inputs.get("TOO", 0) + 1
        if what == "fail":
            raise ValueError(f"{request.request_id()} is refused")
        if what == "edit":
            data[0] = 7
        if "pass" in what:
            result = data
        if "where" in what:
            places = [each.__array_interface__["data"][0] for each in (data, result)]
            print(self.name, "runs in", threading.get_ident(), "from", *places, flush=True)
        if what == "exit":
            os._exit(7)
        if what == "wait":
            (Path(__file__).parent / "waits").touch()
            while not request.is_cancelled():
                time.sleep(0.001)
            (Path(__file__).parent / "cancelled").touch()
        outputs = [pb_utils.Tensor("OUT", result), pb_utils.Tensor("SIDE", result * 2)]
        if what == "repeat":
            outputs.append(pb_utils.Tensor("OUT", result * 3))
        return [pb_utils.InferenceResponse(outputs)]
"""
CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        data = requests[0].inputs()[0].as_numpy()
        call = pb_utils.InferenceRequest(
            model_name="a", inputs=[pb_utils.Tensor("IN", data)], requested_output_names=["OUT"]
        )
        response = call.exec()
        if response.has_error():
            return [pb_utils.InferenceResponse([], response.error())]
        return [pb_utils.InferenceResponse(response.output_tensors())]
"""

PAIRS = """
class TritonPythonModel:
    # Answers two requests at a time.
    def initialize(self, args):
        self.waiting = []

    def execute(self, requests):
        self.waiting += [(each.get_response_sender(), each.inputs()[0].as_numpy()) for each in requests]
        if len(self.waiting) > 1:
            for sender, data in self.waiting:
                sender.send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data + 1)]),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )
            self.waiting = []
        return [None] * len(requests)
"""


def config(group):
    both = f'{tensors(IN=FLOATS)}, {{ name: "TOO" data_type: TYPE_FP32 dims: [ -1 ] optional: true }}'
    return f'backend: "python" input [ {both} ] output [ {tensors(OUT=FLOATS, SIDE=FLOATS)} ] {ONE} {GROUP if group else ""}'


def write_all(repository, group):
    for name in "abcd":
        write_model(repository, name, STEP, config(group))
    write_model(repository, "outside", STEP, config(False))
    write_model(repository, "calls", CALLS, config(group))
    write_model(repository, "pairs", PAIRS, config(group))
    a, b, c = (
        step("a", {"IN": "IN"}, {"OUT": "x"}),
        step("b", {"IN": "x"}, {"OUT": "y"}),
        step("c", {"IN": "y"}, {"OUT": "OUT"}),
    )
    write_ensemble(repository, "chain", [a, b, c])
    write_ensemble(
        repository, "skips", [a, step("b", {"IN": "x", "TOO": "IN"}, {"OUT": "y"}), step("c", {"IN": "y", "TOO": "x"}, {"OUT": "OUT", "SIDE": "SIDE"})],
        outputs=tensors(OUT=FLOATS, x=FLOATS, SIDE=FLOATS),
    )  # fmt: skip
    write_ensemble(
        repository, "given", [a, step("b", {"IN": "x", "TOO": "TOO"}, {"OUT": "OUT"})], inputs=tensors(IN=FLOATS, TOO=FLOATS)
    )  # fmt: skip
    write_ensemble(
        repository, "fork", [a, step("b", {"IN": "x"}, {"OUT": "y"}), step("c", {"IN": "x"}, {"OUT": "z"}), step("d", {"IN": "y", "TOO": "z"}, {"OUT": "OUT"})]
    )  # fmt: skip
    write_ensemble(repository, "leaves", [a, step("outside", {"IN": "x"}, {"OUT": "y"}), c])
    write_ensemble(repository, "calling", [a, step("calls", {"IN": "x"}, {"OUT": "y"}), c])
    write_ensemble(repository, "paired", [a, step("pairs", {"IN": "x"}, {"OUT": "OUT"})])
    write_ensemble(repository, "twice", [a, step("a", {"IN": "x"}, {"OUT": "OUT"})])


@pytest.fixture(scope="module", params=[True, False], ids=["in a group", "by the server"])
def server(tmp_path_factory, request):
    repository = tmp_path_factory.mktemp("steps")
    write_all(repository, request.param)
    with serving(repository) as server:
        server.repository, server.is_grouped = repository, request.param
        warm_up(server)
        yield server


def warm_up(server):
    """A model that has not run yet does not follow another one."""
    for model in ("chain", "given", "fork", "leaves", "calling", "twice"):
        ask(server, model, SMALL)


def ask(server, model, data, **members):
    inputs = {"IN": data, "TOO": data} if model == "given" else {"IN": data}
    return infer(server, model, inputs, **members)


def statistics(server, model):
    return server.request("GET", f"/v2/models/{model}/stats").json["model_stats"][0]


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("model", "result"),
    [("chain", 3), ("leaves", 3), ("calling", 3), ("twice", 2)],
)
def test_one_after_the_other(server, model, result, data):
    for _ in range(3):
        assert (ask(server, model, data)["OUT"] == data + result).all()


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_tensors_that_several_use(server, data):
    for _ in range(3):
        answer = ask(server, "skips", data)
        x = data + 1
        y = x + data + 1
        out = y + x + 1
        for name, expected in (("x", x), ("OUT", out), ("SIDE", out * 2)):
            assert (answer[name] == expected).all(), name
        assert (ask(server, "given", data)["OUT"] == data + 1 + data + 1).all()
        assert (ask(server, "fork", data)["OUT"] == data + 2 + data + 2 + 1).all()
        assert infer(server, "skips", {"IN": data}, outputs=[{"name": "x"}])["x"].tolist() == x.tolist()


@pytest.mark.parametrize("step", ["a", "b", "c"])
def test_of_several_outputs_of_one_name_the_first_counts(server, step):
    assert (ask(server, "chain", SMALL, parameters={step: "repeat"})["OUT"] == SMALL + 3).all()


def test_requests_at_the_same_time(server):
    def send(number):
        data = np.full(30_000 if number % 2 else 3, number, np.float32)
        model, more = [("chain", 3), ("twice", 2), ("leaves", 3), ("calling", 3), ("a", 1), ("b", 1)][number % 6]
        answers[number] = (ask(server, model, data)["OUT"] == data + more).all()

    answers = {}
    threads = [threading.Thread(target=send, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 60
    assert all(answers.values())


def test_a_step_that_waits_for_the_next_request(server):
    """The instance of the first step must be free for that."""
    for _ in range(3):
        with ThreadPoolExecutor(2) as clients:
            for answer in clients.map(lambda _number: ask(server, "paired", SMALL), range(2)):
                assert (answer["OUT"] == SMALL + 2).all()


def test_steps_count_as_any_request(server):
    name = 'pybackend_answers_total{code="OK",protocol="model"}'
    before, calls = {model: statistics(server, model) for model in "abc"}, server.metrics().get(name, 0)
    for _ in range(5):
        ask(server, "chain", SMALL)
    for model, figures in before.items():
        after = statistics(server, model)
        for count in ("inference_count", "execution_count"):
            assert after[count] - figures[count] == 5
        assert after["last_inference"] >= figures["last_inference"]
        for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
            spent = [each["inference_stats"][part] for each in (figures, after)]
            assert spent[1]["count"] - spent[0]["count"] == 5
            assert spent[1]["ns"] >= spent[0]["ns"]
    assert server.metrics().get(name, 0) == calls


@pytest.mark.parametrize("failing", "abc")
def test_a_step_that_fails(server, failing):
    before = {model: statistics(server, model)["inference_stats"] for model in "abc"}
    answer = infer(server, "chain", {"IN": SMALL}, id="seven", parameters={failing: "fail"})
    assert answer.status == 500
    assert answer.error.startswith(
        f"in ensemble 'chain', Failed to process the request(s) for model '{failing}_0_0', message: ValueError: seven is refused"
    )
    for model, figures in before.items():
        after = statistics(server, model)["inference_stats"]
        assert after["fail"]["count"] - figures["fail"]["count"] == (model == failing)
        assert after["success"]["count"] - figures["success"]["count"] == (model < failing)
    assert ask(server, "chain", SMALL).status == 200


@pytest.mark.parametrize("passes", ["", "pass"])
def test_large_tensors_are_not_copied(server, passes):
    """Each step reads what the one before it has made, or was given and passes on, in the same thread."""
    begin = len(server.output)
    answer = infer(server, "chain", {"IN": LARGE}, parameters=dict.fromkeys("abc", f"{passes} where"))
    assert (answer["OUT"] == LARGE + (0 if passes else 3)).all()
    wait_until(lambda: "c runs in" in server.output[begin:], "the last step's line")
    lines = re.findall(r"([abc]) runs in (\d+) from (\d+) (\d+)", server.output[begin:])
    assert [line[0] for line in lines] == ["a", "b", "c"]
    if server.is_grouped:
        assert len({thread for _, thread, _, _ in lines}) == 1
        assert lines[1][2] == lines[0][3]
        assert lines[2][2] == lines[1][3]


def test_edits_in_place(server):
    answer = infer(server, "chain", {"IN": SMALL}, parameters={"b": "edit"})
    assert (answer["OUT"] == SMALL + 3).all()
    for model in ("chain", "b"):  # by whichever way the input comes
        answer = infer(server, model, {"IN": LARGE}, parameters={"b": "edit"})
        if server.is_grouped:
            assert "assignment destination is read-only" in answer.error
        else:
            assert answer.status == 200
    # Of an input that another step uses, too, the first step cannot spoil anything for that one.
    answer = infer(server, "skips", {"IN": SMALL}, parameters={"a": "edit"})
    assert (answer["x"] == SMALL + 1).all()
    assert (answer["OUT"] == (SMALL + 1 + SMALL + 1) + (SMALL + 1) + 1).all()


def test_a_client_that_leaves(server):
    """The step that runs hears of it, and none follows."""
    directory = server.repository / "b" / "1"
    before = statistics(server, "c")["inference_stats"]["success"]["count"]
    with connected(server.port) as connection:
        connection.send(infer_message("chain", {"IN": SMALL}, parameters={"b": "wait"}))
        wait_until((directory / "waits").exists, "the step")
    wait_until((directory / "cancelled").exists, "word of the client's leaving")
    assert ask(server, "b", SMALL).status == 200
    assert statistics(server, "c")["inference_stats"]["success"]["count"] == before


@pytest.mark.parametrize("dying", "abc")
def test_a_step_whose_process_dies(server, dying, snapshot):
    answer = infer(server, "chain", {"IN": SMALL}, parameters={dying: "exit"})
    assert answer.status == 500
    known = (
        "a" if server.is_grouped else dying
    )  # the process has the names of all; the error has that of the first step
    assert answer.error.startswith(f"in ensemble 'chain', Stub process '{known}_0_0' is not healthy")
    assert answer.error == snapshot
    wait_until(lambda: ask(server, "chain", SMALL).status == 200, "another process")
