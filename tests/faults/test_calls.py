"""Models that run other models, while processes die, stand still, wait for each other, or talk all at once."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.callers import listed, write_caller, write_streamer
from tests.faults.leaks import figure, serving_without_leaks
from tests.faults.victims import Asker, ask, starts, told, write_victim
from tests.support.gates import Gate, wait_until
from tests.support.server import free_of_processes, serving
from tests.support.thorough import thorough

WAYS = ("call", "call_async", "stream", "stream_async")
SIGKILLED = (
    "The process was killed by signal 9 (SIGKILL), which is also how the kernel ends a process when memory runs out."
)
TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]"
INTERNAL, UNAVAILABLE = 1, 4


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("calls")


@pytest.fixture(scope="module", autouse=True)
def server(repository):
    """Those who are killed are there once for each test: one that dies often is restarted more and more slowly."""
    for name in ("caller", "other_caller", "stopped", "ring_a", "ring_b", "selfish", "busy_ring_a", "busy_ring_b"):
        write_caller(repository, name)
    write_caller(repository, "selfish_pair", TWO)
    write_caller(repository, "wounded_pair", TWO)
    for way in WAYS:
        write_victim(repository, f"callee_of_{way}")
        write_victim(repository, f"survivor_of_{way}")
        write_caller(repository, f"mortal_{way}")
    write_victim(repository, "leaf")
    for name in ("streamer", "mortal_streamer", "flooder"):
        write_streamer(repository, name)
    with serving_without_leaks(repository) as server:
        yield server


def unhealthy(instance: str, cause: str = SIGKILLED) -> str:
    return f"Stub process '{instance}' is not healthy. {cause}"


def pid_of(repository, model: str) -> int:
    return starts(repository / model)[-1][0]


def reached(repository, model: str, name: str) -> bool:
    return (repository / model / name).exists()


# --- Deaths ---


@pytest.mark.parametrize("way", WAYS)
def test_the_callee_dies(server, repository, way):
    """The call fails with the cause, the caller lives on, and what waited behind the call goes to the next process."""
    callee = f"callee_of_{way}"
    gate = Gate(repository / callee, "death")
    with Asker(server) as asker:
        asked = asker.ask("caller", f"{way} {callee} gate death")
        gate.wait_reached()
        waiting = asker.ask("other_caller", f"{way} {callee} echo patience")
        metric = f'nv_inference_pending_request_count{{model="{callee}",version="1"}}'
        wait_until(lambda: server.metrics()[metric] == 1, "the second call does not wait")
        os.kill(pid_of(repository, callee), signal.SIGKILL)
        replies = [future.result().json["outputs"][0]["data"][0] for future in (asked, waiting)]
    error = f"error {INTERNAL}: {unhealthy(callee + '_0')}"
    expected = [error, "patience"] if way.startswith("call") else [json.dumps([error]), json.dumps(["patience"])]
    assert replies == expected
    assert gate.arrivals == 1, "what had begun was not run again"
    assert told(server, "caller", "echo unharmed") == "unharmed"


@pytest.mark.spec("pb-H04")
def test_a_process_dies_that_streams_after_execute_has_returned(server, repository):
    gate = Gate(repository / "mortal_streamer", "death")
    with Asker(server) as asker:
        asked = [asker.ask(name, "stream mortal_streamer gate death") for name in ("caller", "other_caller")]
        gate.wait_reached(2)
        os.kill(pid_of(repository, "mortal_streamer"), signal.SIGKILL)
        for future in asked:
            responses = json.loads(future.result().json["outputs"][0]["data"][0])
            assert responses == ["before", f"error {INTERNAL}: {unhealthy('mortal_streamer_0')}"]
    assert listed(server, "caller", "stream mortal_streamer echo again") == ["again"]


@pytest.mark.parametrize("way", WAYS)
def test_the_caller_dies(server, repository, way):
    """Its client learns why; the call it was in is nobody's any more, and its callee serves others."""
    caller, callee = f"mortal_{way}", f"survivor_of_{way}"
    gate = Gate(repository / callee, "middle")
    with Asker(server) as asker:
        asked = asker.ask(caller, f"{way} {callee} gate middle")
        gate.wait_reached()
        os.kill(pid_of(repository, caller), signal.SIGKILL)
        reply = asked.result()
        assert (reply.status, reply.error) == (500, unhealthy(f"{caller}_0"))
        gate.open()
        assert told(server, "caller", f"call {callee} echo next") == "next"
        if way == "call":
            wait_until(lambda: told_metric(server, callee) == 0, "the call of a dead model still counts")
        assert told(server, caller, f"call {callee} echo again") == "again"
    assert len(starts(repository / callee)) == 1


def told_metric(server, model: str) -> float:
    return server.metrics()[f'nv_inference_pending_request_count{{model="{model}",version="1"}}']


@pytest.mark.parametrize("way", ["stream", "stream_async"])
def test_a_stream_to_a_dead_caller_is_cancelled(server, repository, way):
    name = f"orphan_{way}"
    with Asker(server) as asker:
        asked = asker.ask(f"mortal_{way}", f"{way} streamer until_cancelled {name}")
        wait_until(lambda: reached(repository, "streamer", f"{name}.begun"), "the stream has not begun")
        assert not reached(repository, "streamer", f"{name}.cancelled")
        os.kill(pid_of(repository, f"mortal_{way}"), signal.SIGKILL)
        assert asked.result().status == 500
    wait_until(lambda: reached(repository, "streamer", f"{name}.cancelled"), "it is not told that nobody listens")


def test_calls_that_wait_in_a_queue_die_with_their_caller(server, repository):
    gate = Gate(repository / "leaf", "queue")
    with Asker(server) as asker:
        first = asker.ask("caller", "call leaf gate queue")
        gate.wait_reached()
        asked = asker.ask("mortal_call_async", "many 50 leaf echo N")
        wait_until(lambda: told_metric(server, "leaf") == 50, "the calls do not wait")
        executed_before = (
            (repository / "leaf" / "echoes").stat().st_size if reached(repository, "leaf", "echoes") else 0
        )
        os.kill(pid_of(repository, "mortal_call_async"), signal.SIGKILL)
        assert asked.result().status == 500
        wait_until(lambda: told_metric(server, "leaf") == 0, "the calls of a dead model still wait")
        gate.open()
        assert first.result().status == 200
    assert told(server, "caller", "call leaf echo x") == "x"
    assert (repository / "leaf" / "echoes").stat().st_size == executed_before + 1


def test_the_host_dies(tmp_path):
    """Whoever waits for an answer from it, in whatever way, ends at once."""
    for name in ("waiting", "threads", "streaming", "awaiting"):
        write_caller(tmp_path, name)
    callee, streamer = write_victim(tmp_path, "callee"), write_streamer(tmp_path, "streamer")
    with serving(tmp_path) as server, Asker(server) as asker:
        for name, text in {
            "waiting": "call callee gate calls",
            "threads": "threads 20 callee gate calls",
            "streaming": "streams 5 streamer gate streams",
            "awaiting": "many 50 streamer gate streams",
        }.items():
            asker.ask(name, text)
        Gate(callee, "calls").wait_reached()
        Gate(streamer, "streams").wait_reached(5)
        stubs = server.stub_pids()
        server.process.send_signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        assert len(stubs) == 6
        assert free_of_processes(stubs, 1), "processes outlived their host"


# --- Cycles ---


@pytest.mark.spec("pb-B13")
@pytest.mark.parametrize("way", WAYS)
def test_a_model_with_one_instance_that_calls_itself(server, way):
    answer = told(server, "selfish", f"{way} selfish echo for ever")
    error = answer if way.startswith("call") else json.loads(answer)[0]
    assert error.startswith(f"error {UNAVAILABLE}: Model selfish - Error when running inference: ")
    assert "selfish -> selfish" in error
    assert told(server, "selfish", "echo on") == "on"


@pytest.mark.spec("pb-B13")
def test_a_ring_of_two(server):
    answer = told(server, "ring_a", "call ring_b call ring_a echo for ever")
    assert answer.startswith(f"error {UNAVAILABLE}: Model ring_a - Error when running inference: ")
    assert "ring_a -> ring_b -> ring_a" in answer or "ring_b -> ring_a -> ring_b" in answer
    assert told(server, "ring_a", "call ring_b echo at the end") == "at the end"


@pytest.mark.spec("pb-B13")
def test_two_instances_are_enough_for_two_levels_and_not_for_three(server):
    assert told(server, "selfish_pair", "call selfish_pair echo deep") == "deep"
    deeper = told(server, "selfish_pair", "call selfish_pair call selfish_pair echo deep")
    assert "selfish_pair -> selfish_pair" in deeper


@pytest.mark.spec("pb-B13")
def test_rings_for_many_clients(server):
    """Each is answered, with what it asked for or with the name of a ring, and none waits for long."""
    texts = {
        "busy_ring_a": ("call busy_ring_b call busy_ring_a echo deep", "call busy_ring_b echo deep", "echo deep"),
        "busy_ring_b": ("call busy_ring_a call busy_ring_b echo deep", "call busy_ring_a echo deep", "echo deep"),
        "selfish_pair": ("call selfish_pair echo deep", "many 3 selfish_pair echo deep", "echo deep"),
    }
    with ThreadPoolExecutor(24) as pool:
        asked = [
            (model, text, pool.submit(ask, server, model, text))
            for _ in range(12)
            for model, each in texts.items()
            for text in each
        ]
        for model, text, future in asked:
            reply = future.result(60)
            assert reply.status == 200, (model, text, reply)
            answer = reply.json["outputs"][0]["data"][0]
            right = answer == "deep" or answer == json.dumps(["deep"] * 3)
            assert right or "no instance is free" in answer, (model, text, answer)
            if text == "echo deep":
                assert right
    assert told(server, "busy_ring_a", "call busy_ring_b echo at the end") == "at the end"


def test_an_instance_that_is_restarted_will_serve_the_call(server, repository):
    """No cycle: the second instance is not there for a moment, but it comes back."""
    directory = repository / "wounded_pair"
    (directory / "gated").touch()
    gate, middle = Gate(directory, "initialize"), Gate(directory, "middle")
    with Asker(server) as asker:
        first, second = (pid for pid, _ in starts(directory))
        asked = asker.ask("wounded_pair", "gate middle")
        middle.wait_reached()
        idle = int(told(server, "wounded_pair", "pid"))
        os.kill(idle, signal.SIGKILL)
        gate.wait_reached()
        middle.open()
        assert asked.result().status == 200
        nested = asker.ask("wounded_pair", "call wounded_pair pid")
        wait_until(lambda: told_metric(server, "wounded_pair") == 1, "the call does not wait")
        gate.open()
        answer = nested.result().json["outputs"][0]["data"][0]
    assert int(answer) not in {first, second}


# --- Crowds ---


@pytest.mark.spec("pb-B14")
def test_two_hundred_calls_at_once_of_a_model_with_one_instance(server):
    assert listed(server, "caller", "many 200 leaf echo N") == [str(n) for n in range(200)]


@pytest.mark.spec("pb-B14")
def test_two_hundred_calls_are_under_way_at_the_same_time(server, repository):
    """None of them is answered before all have begun."""
    gate = Gate(repository / "streamer", "crowd")
    with Asker(server) as asker:
        asked = asker.ask("caller", "streams 200 streamer gate crowd")
        gate.wait_reached(200)
        assert not asked.done()
        gate.open()
        answer = json.loads(asked.result().json["outputs"][0]["data"][0])
    assert answer == [["before", "after"]] * 200


@pytest.mark.parametrize("size", [10, 200_000])
def test_many_threads_that_call(server, size):
    text = "x" * size
    assert listed(server, "caller", f"threads 40 leaf echo N{text}") == [f"{n}{text}" for n in range(40)]


def test_many_callers_at_once(server):
    """Sync, async and streamed, of one caller and one callee, by sixteen clients."""
    with ThreadPoolExecutor(16) as pool:
        texts = ["call leaf echo N", "many 20 leaf echo N", "threads 5 leaf echo N", "streams 3 streamer echo N"] * 12
        answers = list(pool.map(lambda text: told(server, "caller", text), texts))
    single = json.dumps([str(n) for n in range(20)])
    expected = ["N", single, json.dumps([str(n) for n in range(5)]), json.dumps([[str(n)] for n in range(3)])] * 12
    assert answers == expected


def test_thirty_two_threads_send_responses_to_one_request(server):
    responses = listed(server, "caller", "stream streamer crowd 32 25")
    assert sorted(responses[:-1]) == sorted(f"{thread} {n}" for thread in range(32) for n in range(25))
    assert responses[-1] == "end"
    for thread in range(32):
        own = [response for response in responses if response.startswith(f"{thread} ")]
        assert own == [f"{thread} {n}" for n in range(25)]


def test_a_sender_that_is_used_after_the_end(server, repository):
    gate = Gate(repository / "streamer", "late")
    assert listed(server, "caller", "stream streamer late late") == ["the end"]
    gate.open()
    refused = repository / "streamer" / "late.refused"
    wait_until(lambda: refused.exists() and refused.read_text(), "the sender may still be used")
    assert refused.read_text() == "Unable to send response. Response sender has been closed."
    assert listed(server, "caller", "stream streamer echo unharmed") == ["unharmed"]


def test_iterators_that_are_dropped_half_way(server):
    """What nobody looks at any more holds no memory: more passes through than the host would ever keep."""
    before_kb = figure(server, "VmRSS")
    assert told(server, "caller", "drop 30 streamer count 50 100000 dropped") == "dropped"
    assert listed(server, "caller", "stream streamer echo unharmed") == ["unharmed"]
    assert figure(server, "VmRSS") - before_kb < 150_000


# --- A caller that does not read ---


@pytest.mark.parametrize(("count", "nbytes"), [(4_000, 50_000), *thorough((20_000, 5_000), (200, 1_500_000))])
def test_a_caller_that_stands_still_while_others_stream_to_it(server, repository, count, nbytes):
    """The stream waits for it instead of growing in the host; once it goes on, it gets everything, in order."""
    name, directory = f"sent_{nbytes}", repository / "flooder"
    before_kb = figure(server, "VmRSS")  # shared memory included
    with Asker(server) as asker:
        asked = asker.ask("stopped", f"sizes flooder count {count} {nbytes} {name}")
        wait_until(lambda: reached(repository, "flooder", name), "nothing is streamed")
        pid = pid_of(repository, "stopped")
        os.kill(pid, signal.SIGSTOP)
        try:
            sent = stalled(directory / name)
            assert told(server, "caller", "call leaf echo unharmed") == "unharmed"
            grown_kb = figure(server, "VmRSS") - before_kb
        finally:
            os.kill(pid, signal.SIGCONT)
        reply = asked.result()
        assert reply.status == 200, reply
        sizes = json.loads(reply.json["outputs"][0]["data"][0])
    assert sizes == [nbytes] * count + [len("end")]
    assert sent < count // 100, "the test is too small: all was sent before anything had to wait"
    assert grown_kb < 200_000


def stalled(path) -> int:
    """Wait until a file has not grown for a second; returns its size."""
    quiet = threading.Event()
    size = -1
    while size != path.stat().st_size:
        size = path.stat().st_size
        quiet.wait(1)
    return size
