"""Patience has limits: how long ``execute`` may run, how often a process may die, how long the end may take."""

import json
import os
import signal
import time

import pytest

from tests.faults.callers import CALLER, listed, write_caller, write_streamer
from tests.faults.leaks import serving_without_leaks
from tests.faults.victims import Asker, ask, starts, told, write_victim
from tests.support.gates import Gate, wait_until
from tests.support.log_lines import server_tracebacks
from tests.support.repositories import write_model
from tests.support.server import free_of_processes, serving

TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]"
UNAVAILABLE = 4
OVERTIME = "The process ran `execute` for more than 1 s, its limit, and was killed."

HANGS = (
    CALLER
    + """
    def hold_the_interpreter(self, seconds):
        # PyDLL keeps the interpreter's lock: no other thread of this process runs. A signal ends a sleep.
        left = int(seconds)
        while left:
            left = ctypes.PyDLL(None).sleep(left)

    def load(self, name):
        pb_utils.load_model(name)

    def unload(self, name):
        pb_utils.unload_model(name)

    def is_ready_by_name(self, name):
        return pb_utils.is_model_ready(name)
"""
)


def parameter(name: str, value: object) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("limits")


@pytest.fixture(scope="module")
def server(repository):
    limit = parameter("EXECUTION_TIME_LIMIT_S", 1)
    for name in ("limited", "limited_caller", "patient"):
        write_victim(repository, name, limit, HANGS)
    write_streamer(repository, "limited_streamer", limit)
    for name in ("unlimited", "controller"):
        write_victim(repository, name, code=HANGS)
    once_for_all = parameter("RESTART_RETRY_S", 0)
    write_victim(repository, "frail", parameter("RESTART_LIMIT", 2) + once_for_all)
    write_victim(repository, "frail_start", parameter("RESTART_LIMIT", 2) + once_for_all)
    for name in ("frail_pair", "frail_ring"):
        write_caller(repository, name, TWO + parameter("RESTART_LIMIT", 1) + once_for_all)
    write_caller(repository, "rest_of_ring")
    with serving_without_leaks(repository, flags=("--model-control-mode=explicit", "--load-model=*")) as server:
        yield server


# --- Execution time ---


@pytest.mark.parametrize(
    ("hang", "place"),
    [
        ("gate never", r"model\.py:\d+ in pass_gate"),
        ("hold_the_interpreter 3600", r"model\.py:\d+ in hold_the_interpreter"),
    ],
)
def test_an_execution_that_takes_too_long(server, repository, hang, place):
    """It is killed with its process; what waits behind it goes to the next one, and nobody else notices."""
    with Asker(server) as asker:
        begin_s = time.monotonic()
        asked = asker.ask("limited", hang)
        wait_until(lambda: told(server, "unlimited", "echo unharmed") == "unharmed", "others are harmed")
        waiting = [asker.ask("limited", f"echo {n}") for n in range(4)]
        reply = asked.result()
        took_s = time.monotonic() - begin_s
        assert (reply.status, reply.error) == (500, f"Stub process 'limited_0' is not healthy. {OVERTIME}")
        assert took_s >= 1
        server.wait_for(
            rf"instance 'limited_0' is killed, because `execute` ran for more than 1 s, its limit, for 1 request: it is at {place}\. "
            "`pybackend stack limited` shows where an instance is before that"
        )
        assert [future.result().status for future in waiting] == [200] * 4
    server.wait_until("/v2/models/limited/ready", 200)


def test_a_caller_that_hangs_in_a_call(server, repository):
    """The limit is the caller's; its callee is only cancelled, and serves others when it is through."""
    gate = Gate(repository / "unlimited", "callee")
    with Asker(server) as asker:
        asked = asker.ask("limited_caller", "call unlimited gate callee")
        gate.wait_reached()
        assert asked.result().error == f"Stub process 'limited_caller_0' is not healthy. {OVERTIME}"
        gate.open()
        assert told(server, "limited_caller", "call unlimited echo again") == "again"
    assert len(starts(repository / "unlimited")) == 1


def test_what_the_limit_does_not_mean(server, repository):
    """Many short executions, a pause between them, streams that go on after ``execute`` has returned."""
    end_s = time.monotonic() + 2.5
    gate = Gate(repository / "limited_streamer", "long")
    with Asker(server) as asker:
        stream = asker.ask("unlimited", "stream limited_streamer gate long")
        while time.monotonic() < end_s:
            assert told(server, "patient", "echo x") == "x"
        gate.open()
        assert json.loads(stream.result().json["outputs"][0]["data"][0]) == ["before", "after"]
    wait_until(lambda: time.monotonic() > end_s + 2.5, "time stands still")
    assert told(server, "patient", "echo x") == "x"
    assert len(starts(repository / "patient")) == len(starts(repository / "limited_streamer")) == 1


# --- Restarts ---


def test_a_model_that_dies_too_often(server, repository):
    """It is given up, says why to everybody who asks, and comes back when it is loaded again."""
    for _ in range(3):
        assert ask(server, "frail", "exit 3").status == 500
        last = len(starts(repository / "frail"))
        if last < 3:
            server.wait_until("/v2/models/frail/ready", 200)
    server.wait_for("instance 'frail_0' is given up after 2 restarts. The process exited with status 3.")
    reply = ask(server, "frail", "echo x")
    text = (
        "model 'frail' has no instance that can serve: its process could not be restarted. "
        "The process exited with status 3."
    )
    assert (reply.status, reply.error) == (503, text)
    versioned = server.request("POST", "/v2/models/frail/versions/1/infer", '{"inputs": []}')
    assert (versioned.status, versioned.error) == (503, text)
    assert server.get("/v2/models/frail/ready").status == 400
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/health/live").status == 200
    assert told(server, "unlimited", "is_ready_by_name frail") == "False"
    called = told(server, "unlimited", "call frail echo x")
    assert (
        called.startswith(f"error {UNAVAILABLE}: Failed for execute") or f"error {UNAVAILABLE}: Model frail" in called
    )
    assert "exited with status 3" in called
    assert listed(server, "unlimited", "stream frail echo x") == [called]

    told(server, "controller", "load frail")
    assert told(server, "frail", "echo well again") == "well again"
    server.wait_until("/v2/models/frail/ready", 200)


def test_a_model_that_cannot_be_started_again(server, repository):
    """Its restarts fail; those who waited for one are told why when the last one has failed."""
    directory = repository / "frail_start"
    gate = Gate(directory, "middle")
    with Asker(server) as asker:
        death = asker.ask("frail_start", "gate middle")
        gate.wait_reached()
        (directory / "broken").touch()
        waiting = [asker.ask("frail_start", f"echo {n}") for n in range(4)]
        metric = 'nv_inference_pending_request_count{model="frail_start",version="1"}'
        wait_until(lambda: server.metrics()[metric] == 4, "the requests do not wait")
        os.kill(starts(directory)[-1][0], signal.SIGKILL)
        assert death.result().status == 500
        replies = [future.result() for future in waiting]
    assert {reply.status for reply in replies} == {503}
    server.wait_for("instance 'frail_start_0' is given up after 2 restarts. ")
    reply = ask(server, "frail_start", "echo x")
    assert reply.status == 503
    assert "ValueError: the weights are missing" in reply.error
    (directory / "broken").unlink()
    told(server, "controller", "load frail_start")
    assert told(server, "frail_start", "echo well again") == "well again"


def test_a_call_that_waits_for_an_instance_which_is_given_up(server, repository):
    """At first it can be served when that instance is back; then it never can, and is told so."""
    directory = repository / "frail_pair"
    middle = Gate(directory, "middle")
    with Asker(server) as asker:
        asked = asker.ask("frail_pair", "gate middle")
        middle.wait_reached()
        other = int(told(server, "frail_pair", "pid"))
        (directory / "broken").touch()
        os.kill(other, signal.SIGKILL)
        server.wait_for("instance 'frail_pair_0_.' is given up")
        middle.open()
        assert asked.result().status == 200
        answer = told(server, "frail_pair", "call frail_pair echo nobody")
        assert "frail_pair -> frail_pair" in answer
        assert told(server, "frail_pair", "echo one is left") == "one is left"
    assert server.get("/v2/models/frail_pair/ready").status == 400
    (directory / "broken").unlink()
    told(server, "controller", "load frail_pair")
    assert told(server, "frail_pair", "call frail_pair echo both") == "both"


@pytest.mark.spec("pb-B13")
def test_of_calls_that_a_lost_instance_lets_wait_for_each_other_one_fails(server, repository):
    """Its model goes on, ends, and serves the other."""
    names = ("frail_ring", "rest_of_ring")
    gates = [Gate(repository / name, "ring") for name in names]
    restarted = Gate(repository / "frail_ring", "initialize")
    with Asker(server) as asker:
        asked = [
            asker.ask("frail_ring", "call_later ring rest_of_ring echo one"),
            asker.ask("rest_of_ring", "call_later ring frail_ring echo two"),
        ]
        for gate in gates:
            gate.wait_reached()
        idle = int(told(server, "frail_ring", "pid"))
        (repository / "frail_ring" / "gated").touch()
        os.kill(idle, signal.SIGKILL)
        restarted.wait_reached()
        for gate in gates:
            gate.open()
        for name in names:
            metric = f'nv_inference_pending_request_count{{model="{name}",version="1"}}'
            wait_until(lambda metric=metric: server.metrics()[metric] == 1, "a call does not wait")
        os.kill(starts(repository / "frail_ring")[-1][0], signal.SIGKILL)
        found = [future.result().json["outputs"][0]["data"][0] for future in asked]
    assert sum("no instance is free" in answer for answer in found) == 1, found
    assert sum(answer in {"one", "two"} for answer in found) == 1, found


# --- The end ---

ENDLESS = """
import threading, time

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    def finalize(self):
        time.sleep(3600)
"""


@pytest.mark.spec("pb-F03")
def test_a_finalize_without_end_bounds_an_unload(tmp_path):
    config = write_victim(tmp_path, "controller", code=HANGS) / "config.pbtxt"
    write_model(tmp_path, "endless", ENDLESS, config.read_text())
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=1")
    with serving(tmp_path, flags=flags) as server:
        pids = set(server.stub_pids()) - {int(told(server, "controller", "pid"))}
        assert len(pids) == 1
        begin_s = time.monotonic()
        told(server, "controller", "unload endless")
        assert ask(server, "endless", "echo").status in {400, 404, 503}
        assert free_of_processes(list(pids))
        assert time.monotonic() - begin_s >= 1
        assert "instance 'endless_0' missed its" in server.output
        told(server, "controller", "load endless")
        assert told(server, "endless", "again") == "again"
        assert server.stop() == 1


CALLS = ("call", "many 20", "threads 5", "stream", "streams 10")


@pytest.mark.parametrize("ends", [True, False])
def test_calls_are_under_way_when_the_server_stops(tmp_path, ends):
    """Answered if they end in time, failed if not; either way the server exits in time and leaves nothing."""
    gates = []
    for number, call in enumerate(CALLS):
        write_caller(tmp_path, f"caller{number}")
        write = write_streamer if call.startswith("stream") else write_victim
        gates.append(Gate(write(tmp_path, f"callee{number}"), "end"))
    timeout_s = 3600 if ends else 1
    with serving(tmp_path, flags=(f"--exit-timeout-secs={timeout_s}",)) as server, Asker(server) as asker:
        pids = server.stub_pids()
        asked = {
            call: asker.ask(f"caller{number}", f"{call} callee{number} gate end") for number, call in enumerate(CALLS)
        }
        for gate in gates:
            gate.wait_reached()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Waiting for in-flight requests to complete")
        if ends:
            for gate in gates:
                gate.open()
        assert server.wait() == (0 if ends else 1)
        for call, answer in asked.items():
            if ends:
                reply = answer.result()
                assert reply.status == 200, (call, reply)
                assert "error" not in reply.json["outputs"][0]["data"][0], call
            else:
                failed = answer.exception() or answer.result().status >= 500 or "error" in answer.result().body.decode()
                assert failed, call
        assert free_of_processes(pids)
        assert not server_tracebacks(server.output)
