"""How a dead process comes back: more and more slowly if it dies again and again, and for as long as it takes."""

import json
import os
import resource
import signal
import time
from contextlib import ExitStack
from itertools import pairwise

import pytest

from tests.faults.victims import VICTIM, Asker, ask, command, starts, told, write_victim
from tests.sandbox.hosts import arena
from tests.support.connection import connected, head, post
from tests.support.gates import Gate, wait_until
from tests.support.log_lines import server_tracebacks
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import free_of_processes, serving

LINGERING = VICTIM.replace(
    "def initialize(self, args):",
    """def initialize(self, args):
        import threading
        threading.Thread(target=time.sleep, args=(3600,)).start()""",
)
"""A victim whose process does not end by itself, because one of its threads does not."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("restarts")


@pytest.fixture(scope="module")
def server(repository):
    for name in ("weak", "wounded", "well"):
        write_victim(repository, name)
    with serving(repository) as server:
        yield server


def kill(server, model: str) -> float:
    """Kill the model's process; returns when."""
    os.kill(int(told(server, model, "pid")), signal.SIGKILL)
    return time.monotonic()


def row(server, model: str) -> dict[str, str]:
    """The model in the repository index."""
    return next(each for each in server.request("POST", "/v2/repository/index").json if each["name"] == model)


def test_the_first_restart_is_at_once_and_the_next_ones_are_later_and_later(server, repository):
    deaths = []
    for lives in range(1, 6):
        deaths.append(kill(server, "weak"))
        # It may be back before anybody could see that it was away.
        wait_until(lambda n=lives: len(starts(repository / "weak")) > n, "nobody restarts it")
        server.wait_until("/v2/models/weak/ready", 200)
        assert told(server, "well", "echo unharmed") == "unharmed"
    pauses = [start - death for death, (_, start) in zip(deaths, starts(repository / "weak")[1:], strict=True)]
    for pause, least in zip(pauses, (0.0, 0.1, 0.2, 0.4, 0.8), strict=True):
        assert least <= pause < least + 5
    server.wait_ready()


def test_a_model_that_cannot_be_loaded_any_more(server, repository):
    """Nobody waits for what may never come: requests are refused with the reason until it comes."""
    directory = repository / "wounded"
    (directory / "gated").touch()
    gate = Gate(directory, "initialize")
    kill(server, "wounded")
    gate.wait_reached()
    with Asker(server) as asker:
        waiting = [asker.ask("wounded", f"echo {n}") for n in range(3)]
        metric = 'nv_inference_pending_request_count{model="wounded",version="1"}'
        wait_until(lambda: server.metrics()[metric] == 3, "the requests do not wait")
        assert row(server, "wounded") == {"name": "wounded", "version": "1", "state": "READY"}  # it takes requests
        (directory / "broken").touch()
        os.kill(starts(directory)[-1][0], signal.SIGKILL)  # it dies in initialize; the next one fails there
        replies = [future.result() for future in waiting]
    text = "model 'wounded' has no instance that can serve: its process could not be restarted. "
    assert {reply.status for reply in replies} == {503}
    assert all(reply.error.startswith(text) for reply in replies)
    server.wait_for("instance 'wounded_0' cannot be restarted: ValueError: the weights are missing")
    reply = ask(server, "wounded", "echo")
    assert reply.status == 503
    assert reply.error.startswith(text + "ValueError: the weights are missing")
    known = row(server, "wounded")
    assert known["state"] == "UNAVAILABLE"
    assert known["reason"].startswith(text + "ValueError: the weights are missing")
    assert server.get("/v2/models/wounded/ready").status == 400
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/health/live").status == 200
    assert told(server, "well", "echo unharmed") == "unharmed"

    wait_until(lambda: len(starts(directory)) >= 5, "nobody tries again")
    times = [when for _, when in starts(directory)[2:5]]  # after the first life, and the one in which it was killed
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses[0] >= 0.2, "it is not tried less and less often"
    assert pauses[1] >= 0.4, "it is not tried less and less often"

    (directory / "broken").unlink()
    gate.open()
    server.wait_until("/v2/models/wounded/ready", 200)
    assert told(server, "wounded", "echo well again") == "well again"
    assert row(server, "wounded") == {"name": "wounded", "version": "1", "state": "READY"}
    server.wait_ready()


def test_a_host_without_descriptors_tries_again_until_it_has_some(tmp_path):
    """Whether it has none at all, or about those of the process that died, which may be too few for starting another."""
    for name in ("none", "few"):
        write_victim(tmp_path, name)
    with serving(tmp_path) as server:
        host, stubs = server.process.pid, len(server.stub_pids())
        _, hard = resource.prlimit(host, resource.RLIMIT_NOFILE)
        used = {int(number) for number in os.listdir(f"/proc/{host}/fd")}
        for name, limit in (("none", 3), ("few", max(used) + 1)):
            pid = int(told(server, name, "pid"))
            resource.prlimit(host, resource.RLIMIT_NOFILE, (limit, hard))
            os.kill(pid, signal.SIGKILL)
            server.wait_for(f"Stub process '{name}_0' is not healthy")
            if name == "none":
                server.wait_for("instance 'none_0' cannot be restarted: cannot start .*Too many open files")
            resource.prlimit(host, resource.RLIMIT_NOFILE, (hard, hard))
            server.wait_until(f"/v2/models/{name}/ready", 200)
            assert told(server, name, "echo again") == "again"
        assert len(server.stub_pids()) == stubs
        assert server.stop() == 0
        assert not server_tracebacks(server.output)


@pytest.mark.parametrize("level", ["standard", "strict"])
@pytest.mark.thorough
def test_a_confined_model_comes_back_once_there_are_descriptors_again(level):
    """Also looking for what its process has left behind takes descriptors."""
    with arena("root", f"--sandbox={level}", models={"victim": {}}) as host:
        server = host.server
        server.wait_ready()
        pid = host.ask("victim")["pid"]
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, hard))
        os.kill(pid, signal.SIGKILL)
        server.wait_for(r"instance 'victim_\w+' cannot be restarted: .*Too many open files")
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        server.wait_until("/v2/models/victim/ready", 200)
        assert host.ask("victim")["pid"] != pid
        assert server.stop() == 0
        assert not server_tracebacks(server.output)


@pytest.mark.one_process  # the limit of the server's process; each front end has its own, see test_front_ends.py
def test_clients_leave_descriptors_for_a_restart(tmp_path):
    """However many come: the first are served, the last are sent away, and a process that dies meanwhile comes back."""
    write_victim(tmp_path, "weak")
    with serving(tmp_path) as server, ExitStack() as clients:
        host = server.process.pid
        pid = int(told(server, "weak", "pid"))
        _, hard = resource.prlimit(host, resource.RLIMIT_NOFILE)
        resource.prlimit(host, resource.RLIMIT_NOFILE, (200, hard))
        first = clients.enter_context(connected(server.port))
        idle = [clients.enter_context(connected(server.port)) for _ in range(300)]
        refused = idle[-1].reply()
        assert refused.status == 503
        assert refused.error.startswith("the server has as many connections as it can take")
        assert idle[-1].at_end()
        os.kill(pid, signal.SIGKILL)
        server.wait_for("instance 'weak_0' is restarted")
        first.send(post("/v2/models/weak/infer", json.dumps(command("echo again")).encode()))
        assert first.reply().json["outputs"][0]["data"] == ["again"]
        clients.close()
        server.wait_until("/v2/models/weak/ready", 200)
        assert server.stop() == 0
        assert not server_tracebacks(server.output)
        assert server.output.count("Clients use all descriptors") == 1


def test_what_clients_announce_leaves_descriptors_for_a_restart(tmp_path):
    """Also where it is more than the model has memory for: none of it is there yet."""
    write_victim(tmp_path, "weak")
    write_model(tmp_path, "identity", IDENTITY, identity_config())
    with serving(tmp_path, flags=("--model-memory-limit=1048576",)) as server, ExitStack() as clients:
        host = server.process.pid
        pid = int(told(server, "weak", "pid"))
        _, hard = resource.prlimit(host, resource.RLIMIT_NOFILE)
        resource.prlimit(host, resource.RLIMIT_NOFILE, (200, hard))
        announcing = [clients.enter_context(connected(server.port)) for _ in range(100)]
        tensor = {"name": "IN", "datatype": "FP32", "shape": [250_000], "parameters": {"binary_data_size": 1_000_000}}
        text = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": len(text), "Content-Length": len(text) + 1_000_000}
        for connection in announcing:
            connection.send(head("POST", "/v2/models/identity/infer", headers) + text)
        assert told(server, "weak", "echo all are read") == "all are read"
        os.kill(pid, signal.SIGKILL)
        server.wait_for("instance 'weak_0' is restarted")
        assert told(server, "weak", "echo again") == "again"
        clients.close()
        assert server.stop() == 0


@pytest.mark.thorough
def test_a_thread_that_goes_on_keeps_no_process_alive(tmp_path):
    """Neither that of a model which failed to load nor that of one which is finalized."""
    directory = write_victim(tmp_path, "lingering", code=LINGERING)
    grace = {"pybackend.instance.session.EXIT_GRACE_S": 0.5}
    with serving(tmp_path, flags=("--exit-timeout-secs=3600",), limits=grace) as server:
        (directory / "broken").touch()
        kill(server, "lingering")
        wait_until(lambda: len(starts(directory)) >= 4, "nobody tries again")
        wait_until(
            lambda: sum(pid in server.stub_pids() for pid, _ in starts(directory)) <= 1,
            f"of the processes {starts(directory)} too many are among {server.stub_pids()}",
        )
        (directory / "broken").unlink()
        server.wait_until("/v2/models/lingering/ready", 200)
        assert told(server, "lingering", "echo well again") == "well again"
        pids = server.stub_pids()
        assert server.stop() == 0
        assert "is killed: its model is finalized, but a thread that is no daemon" in server.output
        assert free_of_processes(pids)


def test_a_stop_waits_for_a_restart_no_longer_than_it_may(tmp_path):
    directory = write_victim(tmp_path, "slow")
    gate = Gate(directory, "initialize")
    with serving(tmp_path, flags=("--exit-timeout-secs=1",)) as server:
        (directory / "gated").touch()
        kill(server, "slow")
        gate.wait_reached()
        with Asker(server) as asker:
            waiting = asker.ask("slow", "echo")
            metric = 'nv_inference_pending_request_count{model="slow",version="1"}'
            wait_until(lambda: server.metrics()[metric] == 1, "the request does not wait")
            pids = server.stub_pids()
            assert server.stop() == 1
            reply = waiting.result()
            assert (reply.status, reply.error) == (
                503,
                "the request to model 'slow' was still waiting when the server stopped",
            )
            assert free_of_processes(pids)
