"""Models that are loaded again while clients use them; another model asks for it."""

import threading

import numpy as np
import pytest

from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.repositories import tensors, write_model
from tests.support.served import served

FLAGS = ("--model-control-mode=explicit", "--load-model=laboratory")
CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_INT32", [3]))} ]
version_policy {{ all {{}} }}
instance_group {{ kind: KIND_CPU }}
"""


def telling(number):
    """A model that answers with a number, its version and its process."""
    return f"""
    import os

    class TritonPythonModel:
        def initialize(self, args):
            self.told = np.array([{number}, int(args["model_version"]), os.getpid()], np.int32)

        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.told)]) for _ in requests]
    """


@served(flags=FLAGS)
def server(repository):
    write_laboratory(repository)


@pytest.fixture
def load(server):
    """Loads ``m``, and says why it could not be."""
    run = laboratory(server)

    def load():
        answer = run("""
            try:
                pb_utils.load_model("m")
            except pb_utils.TritonModelException as error:
                return out(OUT=text(error))
            return out(OUT=text("done"))
        """)
        return answer["OUT"][0].decode()

    return load


def told(server, version="", size=1):
    path = f"m/versions/{version}" if version else "m"
    return infer(server, path, {"IN": np.zeros(size, np.float32)})


def lives(server, version):
    """The processes that a version's requests reach."""
    return {int(told(server, version)["OUT"][2]) for _ in range(20)}


@pytest.mark.spec("srv-R07")
def test_no_request_fails_while_a_model_is_replaced(server, load):
    write_model(server.repository, "m", telling(0), CONFIG)
    assert load() == "done"
    stop, failed, answered = threading.Event(), [], [0, 0]

    def client(index, size):
        while not stop.is_set():
            answer = told(server, size=size)
            answered[index] += 1
            if answer.status != 200:
                failed.append(answer.document)

    clients = [threading.Thread(target=client, args=(0, 10)), threading.Thread(target=client, args=(1, 300_000))]
    for thread in clients:
        thread.start()
    try:
        for number in (1, 2, 3, 4):
            write_model(server.repository, "m", telling(number), None)
            before = list(answered)
            assert load() == "done"
            assert told(server)["OUT"][0] == number
            wait_until(lambda before=before: all(a > b for a, b in zip(answered, before, strict=True)), "no answers")
    finally:
        stop.set()
        for thread in clients:
            thread.join()
    assert failed == []
    # What was replaced has ended: the laboratory and one process of the new version are left.
    wait_until(lambda: len(server.stub_pids()) == 2, f"processes: {server.stub_pids()}")
    assert server.get("/v2/health/ready").status == 200


@pytest.mark.spec("srv-R08")
def test_a_broken_successor_does_not_replace_what_serves(server, load):
    write_model(server.repository, "m", telling(7), CONFIG)
    assert load() == "done"
    before = lives(server, "1")
    write_model(server.repository, "m", "raise ValueError('the weights are missing')", None)
    said = load()
    assert "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: ValueError: the weights are" in said
    (server.repository / "m/config.pbtxt").write_text("no: such_field")
    assert "failed to load 'm', failed to poll from model repository: failed to read text proto from" in load()
    assert lives(server, "1") == before
    assert told(server)["OUT"][0] == 7
    assert server.get("/v2/health/ready").status == 200
    write_model(server.repository, "m", telling(8), CONFIG)
    assert load() == "done"
    assert told(server)["OUT"][0] == 8


@pytest.mark.spec("srv-R09")
def test_a_new_version_leaves_the_others_alone(server, load):
    write_model(server.repository, "m", telling(1), CONFIG)
    assert load() == "done"
    before = lives(server, "1")
    assert load() == "done"
    assert lives(server, "1") == before
    write_model(server.repository, "m", telling(2), None, version=2)
    assert load() == "done"
    assert lives(server, "1") == before
    assert told(server)["OUT"][:2].tolist() == [2, 2]
    assert server.get("/v2/models/m").json["versions"] == ["1", "2"]
