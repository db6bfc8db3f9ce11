"""Weights of versions and a shadow: who answers requests that name no version, and who gets copies of them."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from pybackend.frontend.access.groups import http_group
from pybackend.settings import ApiGroup
from tests.support.callers import caller, write_caller
from tests.support.ensembles import step, write_ensemble
from tests.support.gates import GATE, Gate, wait_until
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.served import served

TENSORS = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [2]))} ]
version_policy {{ all {{}} }}
instance_group {{ kind: KIND_CPU }}
"""

VERSION = """
class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        answer = lambda request: np.array([self.version, request.inputs()[0].as_numpy().sum()], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer(request))]) for request in requests]
"""

SHADOWED = f"""
{GATE}
class TritonPythonModel:
    def initialize(self, args):
        self.is_shadow = args["model_version"] == "3"
        self.place = args["model_repository"]

    def is_ready(self):
        return not self.is_shadow

    def execute(self, requests):
        if self.is_shadow:
            pass_gate(self.place, "shadow")
        responses = []
        for request in requests:
            total = request.inputs()[0].as_numpy().sum()
            answer = np.array([0, -total if self.is_shadow and total < 0 else total], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
        return responses
"""

SUMMING = """
class TritonPythonModel:
    def initialize(self, args):
        self.version, self.sums = int(args["model_version"]), {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key, number = request.correlation_id(), request.inputs()[0].as_numpy().sum()
            self.sums[key] = number + (0 if request.flags() & 1 else self.sums[key])
            answer = np.array([self.version, self.sums[key]], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
        return responses
"""


def parameters(**values):
    return " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    )


def config(extra="", **values):
    return f"{TENSORS} {extra} {parameters(**values)}"


@served(flags=("--model-control-mode=explicit", "--load-model=*"))
def server(repository):
    for version in (1, 2):
        write_model(repository, "split", VERSION, config(TRAFFIC_WEIGHTS="1=3, 2=1"), version=version)
        write_model(repository, "plain", VERSION, config(), version=version)
        summing = config("sequence_batching { max_sequence_idle_microseconds: 600000000 }", TRAFFIC_WEIGHTS="1=1,2=1")
        summing = summing.replace("kind: KIND_CPU", "kind: KIND_CPU count: 2")  # a slot for each sequence
        write_model(repository, "summing", SUMMING, summing, version=version)
    for version in (1, 2, 3):
        write_model(repository, "shadowed", SHADOWED, config(TRAFFIC_SHADOW="3=50%"), version=version)
    write_ensemble(
        repository, "whole", [step("split", {"IN": "IN"}, {"OUT": "OUT"})], outputs=tensors(OUT=("TYPE_FP32", [2]))
    )
    write_caller(repository)


def request(kind, model, values, version="", **members):
    tensor = kind.InferInput("IN", [len(values)], "FP32")
    tensor.set_data_from_numpy(np.array(values, np.float32))
    return model, [tensor], {"model_version": version, **members}


def told(client, kind, model, values=(0.0,), version="", **members):
    """The version that answers, by its model and by the response, and the sum of the inputs."""
    name, inputs, options = request(kind, model, values, version, **members)
    result = client.infer(name, inputs, **options)
    answer, response = result.as_numpy("OUT"), result.get_response()
    said = response["model_version"] if isinstance(response, dict) else response.model_version
    return int(answer[0]), int(said), float(answer[1])


@pytest.fixture(params=["http", "grpc"])
def door(request, server):
    kind, url = (http_client, server.url) if request.param == "http" else (grpc_client, server.grpc_url)
    with kind.InferenceServerClient(url.removeprefix("http://")) as client:
        yield lambda model, *args, **members: told(client, kind, model, *args, **members)


def traffic(server, model, change=None):
    path = f"/v2/repository/models/{model}/traffic"
    return server.get(path) if change is None else server.request("POST", path, change)


def test_requests_without_a_version_are_distributed_by_weight(server, door):
    versions = []
    for _ in range(8):
        answered, said, _ = door("split")
        assert answered == said
        versions.append(answered)
        # Neither named versions nor questions about the model take part.
        assert door("split", (1.0,), "2")[0] == 2
        assert server.get("/v2/models/split/ready").status == 200
        assert server.get("/v2/models/split").json["versions"] == ["1", "2"]
    for start in range(5):
        assert Counter(versions[start : start + 4]) == {1: 3, 2: 1}
    assert {door("plain")[0] for _ in range(4)} == {2}


def test_requests_that_are_refused_have_no_share(server, door):
    """A client that sends something wrong would else take away the turn of a version."""
    assert traffic(server, "plain", {"weights": {"1": 1, "2": 1}}).status == 200
    versions = []
    for _ in range(6):
        versions.append(door("plain")[0])
        assert server.infer("plain", b"{").status == 500
        assert server.request("POST", "/v2/models/plain/generate", b"{").status == 500
    assert sorted(versions[:2]) == sorted(versions[2:4]) == sorted(versions[4:]) == [1, 2]
    assert traffic(server, "plain", {"reset": True}).status == 200


def test_large_requests_are_distributed_too(door):
    values = np.ones(300_000, np.float32)
    assert Counter(door("split", values)[::2] for _ in range(4)) == {(1, 300_000.0): 3, (2, 300_000.0): 1}


def test_steps_of_ensembles_and_calls_of_models_are_distributed(server):
    array = np.ones(100_000, np.float32)
    steps = [infer(server, "whole", {"IN": array})["OUT"].tolist() for _ in range(4)]
    assert sorted(steps) == [[1, 100_000], [1, 100_000], [1, 100_000], [2, 100_000]]
    run = caller(server)
    code = """
        inputs = [pb_utils.Tensor("IN", np.ones(2, np.float32))]
        request = pb_utils.InferenceRequest(model_name="split", requested_output_names=["OUT"], inputs=inputs)
        return [int(request.exec().output_tensors()[0].as_numpy()[0]) for _ in range(4)]
    """
    assert Counter(run(code)) == {1: 3, 2: 1}


def test_sequences_stay_on_their_version(door):
    begun = {}
    for sequence in range(1, 5):
        begun[sequence], _, total = door("summing", (1.0,), sequence_id=sequence, sequence_start=True)
        assert total == 1
    assert Counter(begun.values()) == {1: 2, 2: 2}
    for number in (2, 3):
        for sequence, version in reversed(begun.items()):
            answered, said, total = door("summing", (1.0,), sequence_id=sequence, sequence_end=number == 3)
            assert (answered, said, total) == (version, version, number)


# The shadow


def copies(server):
    metrics = server.metrics()
    found = {}
    for family, results in (("copies", ("sent", "dropped")), ("answers", ("same", "different"))):
        for result in results:
            labels = f'model="shadowed",result="{result}",version="3"'
            found[result] = metrics[f"pybackend_shadow_{family}_total{{{labels}}}"]
    return found


def wait_compared(server, before, **more):
    """Wait until the counters have grown by so much, and by no more."""
    wanted = {name: count + more.get(name, 0) for name, count in before.items()}
    wait_until(lambda: copies(server) == wanted, lambda: f"{copies(server)} is not {wanted}")


def test_a_shadow_gets_copies_and_answers_nobody(server, door):
    gate = Gate(server.repository / "shadowed", "shadow")
    gate.open()
    before = copies(server)
    for total in (1.0, -1.0) * 4:
        assert door("shadowed", (total,))[1:] == (2, total)
    wait_compared(server, before, sent=4, same=0, different=4)
    before = copies(server)
    values = np.ones(500_000, np.float32)  # its bytes lie in the memory of the version that answers
    for _ in range(2):
        assert door("shadowed", values)[1:] == (2, 500_000)
    wait_compared(server, before, sent=1, same=1)
    before = copies(server)
    for _ in range(2):
        assert door("shadowed", (1.0,), "1")[1] == 1  # requests that name a version are not copied
    assert copies(server) == before
    assert server.get("/v2/health/ready").status == 200  # the shadow's readiness is nobody's


def test_a_slow_shadow_is_not_felt(server):
    assert traffic(server, "shadowed", {"shadow": {"version": 3, "percent": 100}}).status == 200
    gate = Gate(server.repository / "shadowed", "shadow")
    gate.close()
    try:
        before, reached = copies(server), gate.arrivals
        for _ in range(64 + 6):
            assert infer(server, "shadowed", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [0, 1]
        gate.wait_reached(reached + 1)
        wait_until(lambda: copies(server)["sent"] == before["sent"] + 64, lambda: f"{copies(server)}")
        assert copies(server)["dropped"] == before["dropped"] + 6
    finally:
        gate.open()
    wait_compared(server, before, sent=64, dropped=6, same=64)
    report = traffic(server, "shadowed", {"reset": True}).json
    assert (report["shadow"], report["source"]) == ({"version": "3", "percent": 50.0}, "configuration")


# Changes while the server runs


@pytest.fixture
def command(server):
    def run(*arguments):
        command = [sys.executable, "-m", "pybackend", "traffic", *arguments, f"--url={server.url}"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    return run


def answering(server, model, count):
    counts = Counter(int(infer(server, model, {"IN": np.ones(1, np.float32)})["OUT"][0]) for _ in range(count))
    return dict(sorted(counts.items()))


@pytest.mark.around("pybackend_tools")
def test_weights_change_while_the_server_runs(server, command):
    assert command("plain").stdout == "version 2: 100 % of the requests\nby: default\n"
    done = command("plain", "--weights", "1=90,2=10")
    assert (done.returncode, done.stdout) == (
        0,
        "version 1: 90 % of the requests\nversion 2: 10 % of the requests\nby: request\n",
    )
    server.wait_for("model 'plain': requests that name no version go to: version 1 90 %, version 2 10 %")
    assert answering(server, "plain", 20) == {1: 18, 2: 2}
    assert command("plain", "--weights=1=1", "--shadow=2=100").stdout.splitlines()[1] == "version 2: copies of 100 %"
    assert command("plain", "--shadow=none", "--weights=1=1,2=1").returncode == 0
    assert server.request("POST", "/v2/repository/models/plain/load", {}).status == 200
    assert json.loads(command("plain", "--json").stdout) == {
        "name": "plain",
        "weights": {"1": 1, "2": 1},
        "shadow": None,
        "source": "request",
        "shares": {"1": 50.0, "2": 50.0},
    }
    # A version that no longer serves leaves its share to the others.
    shutil.move(server.repository / "plain" / "2", server.repository / "away")
    assert server.request("POST", "/v2/repository/models/plain/load", {}).status == 200
    assert answering(server, "plain", 4) == {1: 4}
    server.wait_for("model 'plain': version 2 is not ready; requests that name no version go to: version 1 100 %")
    shutil.move(server.repository / "away", server.repository / "plain" / "2")
    assert server.request("POST", "/v2/repository/models/plain/load", {}).status == 200
    assert answering(server, "plain", 4) == {1: 2, 2: 2}
    # Other rules in the configuration end those of the request, and no process starts again for them.
    stubs = set(server.stub_pids())
    write_model(server.repository, "plain", None, config(TRAFFIC_WEIGHTS="2=1"))
    assert server.request("POST", "/v2/repository/models/plain/load", {}).status == 200
    assert traffic(server, "plain").json["source"] == "configuration"
    assert answering(server, "plain", 4) == {2: 4}
    assert set(server.stub_pids()) == stubs


@pytest.mark.around("pybackend_tools")
def test_changes_that_are_refused(server, command):
    for change, text in (
        ({"weights": {"1": 1, "7": 1}}, "cannot change the traffic of model 'split': version 7 is not loaded"),
        ({"shadow": {"version": 2, "percent": 5}}, "version 2 has a weight and is the shadow"),
        ({"shadow": {"version": 2, "percent": 0}}, "'shadow' must be version=percent such as 3=5"),
        ({"weights": {"1": 0}}, "'weights' must be a list of version=weight such as 1=90,2=10"),
        ({"wieghts": {}}, "Object contains unknown field `wieghts`"),
        ({}, "it names none of 'weights', 'shadow' and 'reset'"),
    ):
        reply = traffic(server, "split", change)
        assert reply.status == 400
        assert text in reply.error
    assert "is not found" in traffic(server, "gone").error
    assert traffic(server, "whole", {"weights": {"1": 1}}).error.endswith(
        "the versions of an ensemble are equal: give weights and a shadow to the models of its steps"
    )
    assert "a model with sequence_batching cannot have a shadow" in (
        traffic(server, "summing", {"weights": {"1": 1}, "shadow": {"version": 2, "percent": 5}}).error
    )
    done = command("split", "--weights=1:90")
    assert done.returncode == 1
    assert 'Bad option: "--weights". Got 1:90, expected a list of version=weight such as 1=90,2=10' in done.stderr
    assert http_group("/v2/repository/models/split/traffic") is ApiGroup.MODEL_REPOSITORY


def test_configurations_that_are_refused(server):
    for values, extra, text in (
        ({"TRAFFIC_WEIGHTS": "1:90"}, "", "parameters TRAFFIC_WEIGHTS must be a list of version=weight"),
        ({"TRAFFIC_SHADOW": "1"}, "", "parameters TRAFFIC_SHADOW must be version=percent such as 3=5"),
        ({"TRAFFIC_WEIGHTS": "5=1"}, "", "no version with a weight is served, only 1: change the weights"),
        ({"TRAFFIC_SHADOW": "1=5"}, "", "version 1 is the shadow, and no other version is served"),
        (
            {"TRAFFIC_SHADOW": "2=5"},
            "model_transaction_policy { decoupled: true }",
            "a decoupled model cannot have a shadow",
        ),
    ):
        write_model(server.repository, "wrong", VERSION, config(extra, **values))
        reply = server.request("POST", "/v2/repository/models/wrong/load", {})
        assert reply.status == 400, values
        assert text in reply.error
    write_model(server.repository, "wrong", VERSION, config(TRAFFIC_WEIGHTS="1=1,5=1"))
    assert server.request("POST", "/v2/repository/models/wrong/load", {}).status == 200
    server.wait_for("model 'wrong': its traffic rules name version 5, which is not loaded")
    assert answering(server, "wrong", 2) == {1: 2}
