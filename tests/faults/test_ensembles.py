"""Processes of an ensemble's parts that die in the middle of a request: it is answered, others are not harmed, all
heals."""

import os
import signal

import pytest

from tests.faults.leaks import serving_without_leaks
from tests.faults.victims import Asker, ask, starts, write_victim
from tests.support.ensembles import step, write_ensemble
from tests.support.gates import Gate, wait_until
from tests.support.repositories import tensors

TEXT = ("TYPE_STRING", [1])
LARGE = "x" * 3_000_000
"""Copied between the steps by another thread."""


VICTIMS = ("first", "second", "frail", "large_first", "large_second")
"""Some for one test each: each further death of the same one costs a longer pause before its restart."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A server with victims: chains run in the second one what the first one answers, ``pair`` runs both side by side."""
    repository = tmp_path_factory.mktemp("victims")
    one = "instance_group { count: 1 kind: KIND_CPU }"
    directories = {name: write_victim(repository, name, one) for name in VICTIMS}
    inner = {"COMMAND": "COMMAND"}
    for name, first, second in (
        ("chain", "first", "second"),
        ("frail_chain", "first", "frail"),
        ("large_chain", "large_first", "large_second"),
    ):
        write_ensemble(
            repository,
            name,
            [step(first, inner, {"OUT": "x"}), step(second, {"COMMAND": "x"}, {"OUT": "OUT"})],
            tensors(COMMAND=TEXT),
            tensors(OUT=TEXT),
        )
    write_ensemble(
        repository,
        "pair",
        [step("first", inner, {"OUT": "OUT"}), step("second", {"COMMAND": "OTHER"}, {"OUT": "OUT2"})],
        tensors(COMMAND=TEXT, OTHER=TEXT),
        tensors(OUT=TEXT, OUT2=TEXT),
    )
    with serving_without_leaks(repository) as server:
        yield server, directories


@pytest.fixture
def server(stage):
    yield stage[0]
    for name in ("chain", "pair", "frail_chain", "large_chain"):
        stage[0].wait_until(f"/v2/models/{name}/ready", 200)


@pytest.fixture
def directories(stage):
    return stage[1]


def told(reply):
    assert reply.status == 200, reply
    return [output["data"][0] for output in reply.json["outputs"]]


def kill(directory):
    os.kill(starts(directory)[-1][0], signal.SIGKILL)


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize(
    ("text", "model"),
    [("exit 3", "first"), ("segv ", "first"), ("echo exit 3", "second"), ("echo abort ", "second")],
)
def test_a_step_that_dies(server, text, model):
    reply = ask(server, "chain", text)
    assert reply.status == 500
    assert reply.error.startswith(f"in ensemble 'chain', Stub process '{model}_0_0' is not healthy.")
    assert told(ask(server, "chain", "echo echo hello")) == ["hello"]


@pytest.mark.parametrize("model", ["first", "second"])
def test_a_step_that_is_killed(server, directories, model):
    gate = Gate(directories[model], f"killed-{model}")
    text = f"gate killed-{model}" if model == "first" else f"echo gate killed-{model}"
    with Asker(server) as asker:
        asked = asker.ask("chain", text)
        gate.wait_reached()
        kill(directories[model])
        reply = asked.result()
    assert reply.status == 500
    assert reply.error.startswith(f"in ensemble 'chain', Stub process '{model}_0_0' is not healthy.")


def test_a_step_that_had_not_begun_waits_for_the_next_process(server, directories):
    """Only the request that the process was at is lost."""
    gate = Gate(directories["second"], "busy")
    with Asker(server) as asker:
        busy = asker.ask("second", "gate busy")
        gate.wait_reached()
        asked = asker.ask("chain", "echo echo hello")
        wait_until(
            lambda: server.metrics()['nv_inference_request_success{model="first",version="1"}'] > 0, "no first step"
        )
        kill(directories["second"])
        assert busy.result().status == 500
        assert told(asked.result()) == ["hello"]


def test_the_other_step_goes_on_when_one_is_killed(server, directories):
    """The request is answered at once; the process that is still at it serves the next one when it is through."""
    slow, dies = Gate(directories["first"], "slow"), Gate(directories["second"], "dies")
    both = {
        "inputs": [
            {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": ["gate slow"]},
            {"name": "OTHER", "datatype": "BYTES", "shape": [1], "data": ["gate dies"]},
        ]
    }
    pid = starts(directories["first"])[-1][0]
    with Asker(server) as asker:
        asked = asker.call(server.infer, "pair", both)
        slow.wait_reached()
        dies.wait_reached()
        kill(directories["second"])
        reply = asked.result()
        assert reply.error.startswith("in ensemble 'pair', Stub process 'second_0_0' is not healthy.")
        following = asker.ask("first", "pid")
        slow.open()
        assert told(following.result()) == [str(pid)]


def test_both_steps_die_at_once(server, directories):
    gates = [Gate(directories["first"], "one"), Gate(directories["second"], "two")]
    both = {
        "inputs": [
            {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": ["gate one"]},
            {"name": "OTHER", "datatype": "BYTES", "shape": [1], "data": ["gate two"]},
        ]
    }
    with Asker(server) as asker:
        asked = asker.call(server.infer, "pair", both)
        for gate in gates:
            gate.wait_reached()
        for name in ("first", "second"):
            kill(directories[name])
        assert asked.result().status == 500


@pytest.mark.spec("srv-R19")
def test_without_a_process_the_ensemble_is_not_ready(server, directories):
    (directories["frail"] / "broken").touch()
    try:
        assert ask(server, "frail", "exit 1").status == 500
        server.wait_until("/v2/models/frail_chain/ready", 400)
        server.wait_for("instance 'frail_0_0' cannot be restarted")
        reply = ask(server, "frail_chain", "echo echo hello")
        assert reply.status == 503
        assert reply.error.startswith("in ensemble 'frail_chain', model 'frail' has no instance that can serve")
    finally:
        (directories["frail"] / "broken").unlink()
    server.wait_until("/v2/models/frail_chain/ready", 200)
    assert told(ask(server, "frail_chain", "echo echo hello")) == ["hello"]


@pytest.mark.thorough
def test_large_tensors_of_processes_that_die(server, directories):
    """Their memory is read, and given back, although who has written it is gone."""
    for round_number in range(3):
        with Asker(server, 8) as asker:
            asked = [asker.ask("large_chain", f"echo echo {LARGE}") for _ in range(8)]
            wait_until(lambda asked=asked: any(one.done() for one in asked), "no answer")
            kill(directories["large_second" if round_number % 2 else "large_first"])
            replies = [one.result() for one in asked]
        assert {reply.status for reply in replies} <= {200, 500}
        assert all(told(reply) == [LARGE] for reply in replies if reply.status == 200)
        server.wait_until("/v2/models/large_chain/ready", 200)
