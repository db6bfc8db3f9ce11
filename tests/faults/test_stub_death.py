"""A model's process dies: before, during and between requests, alone or beside others, while clients go on asking."""

import http.client
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.victims import Asker, ask, command, starts, told, write_victim
from tests.support.gates import Gate, wait_until
from tests.support.server import ServerProcess, serving

TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]"
GROUPED = 'parameters { key: "PROCESS_GROUP" value: { string_value: "group" } }'
CLIENTS = 8

SIGKILLED = (
    "The process was killed by signal 9 (SIGKILL), which is also how the kernel ends a process when memory runs out."
)
CAUSES = {
    "exit 7": "The process exited with status 7.",
    "exit 0": "The process exited with status 0.",
    "segv": "The process was killed by signal 11 (SIGSEGV).",
    "abort": "The process was killed by signal 6 (SIGABRT).",
}


def unhealthy(instance: str, cause: str) -> str:
    return f"Stub process '{instance}' is not healthy. {cause}"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("deaths")


@pytest.fixture(scope="module")
def server(repository):
    """One model for each test, because a model that dies often is restarted more and more slowly."""
    for name in ("own", "before", "during", "readiness", "stormy", "bystander"):
        write_victim(repository, name)
    write_victim(repository, "lone_thread")
    for name in ("grouped_thread", "neighbour"):
        write_victim(repository, name, GROUPED)
    for name in ("pair", "stormy_pair"):
        write_victim(repository, name, TWO)
    with serving(repository) as server:
        yield server


class Crowd:
    """Clients that ask one model again and again, each on a connection of its own, and remember every answer."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        self._port, self._path = server.port, f"/v2/models/{model}/infer"
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self.answers: list[list[tuple[int, object]]] = [[] for _ in range(CLIENTS)]
        self._runs = [self._pool.submit(self._run, number) for number in range(CLIENTS)]

    def _run(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            while not self._stop.is_set():
                text = f"client {number} request {len(self.answers[number])}"
                connection.request("POST", self._path, json.dumps(command(f"echo {text}")))
                reply = connection.getresponse()
                document = json.loads(reply.read())
                right = reply.status == 200 and document["outputs"][0]["data"] == [text]
                self.answers[number].append((reply.status, "right" if right else document))
        finally:
            connection.close()

    def wait_for_more(self) -> None:
        """Wait until each client has had three successes from now on."""
        goals = [self._successes(number) + 3 for number in range(CLIENTS)]
        wait_until(
            lambda: all(self._successes(number) >= goal for number, goal in enumerate(goals)),
            f"the clients have {[len(answers) for answers in self.answers]} answers",
        )

    def _successes(self, number: int) -> int:
        return self.answers[number].count((200, "right"))

    def leave(self) -> list[tuple[int, object]]:
        """Stop asking; returns what was answered apart from what was right. A request without an answer fails here."""
        self._stop.set()
        for run in self._runs:
            run.result()
        self._pool.shutdown()
        return [answer for answers in self.answers for answer in answers if answer != (200, "right")]


@pytest.mark.spec("srv-P07")
@pytest.mark.parametrize("death", CAUSES)
def test_the_request_that_kills_its_process_learns_the_cause(server, death):
    reply = ask(server, "own", death)
    assert (reply.status, reply.error) == (500, unhealthy("own_0", CAUSES[death]))
    assert told(server, "own", "echo again") == "again"


@pytest.mark.parametrize("model", ["lone_thread", "grouped_thread"])
def test_a_thread_that_ends_itself_takes_the_process_with_it(server, model):
    """The host hears from nobody else that the model will not answer."""
    reply = ask(server, model, "end_thread")
    assert (reply.status, reply.error) == (500, unhealthy(f"{model}_0", "The process exited with status 1."))
    for each in (model, "neighbour"):
        assert told(server, each, "echo again") == "again"


@pytest.mark.spec("srv-P07")
def test_death_between_requests_goes_unnoticed_by_clients(server):
    for _ in range(2):
        pid = int(told(server, "before", "pid"))
        os.kill(pid, signal.SIGKILL)
        with Asker(server) as asker:
            replies = [future.result() for future in [asker.ask("before", f"echo {n}") for n in range(CLIENTS)]]
        assert [reply.status for reply in replies] == [200] * CLIENTS
        assert told(server, "before", "pid") != str(pid)


@pytest.mark.spec("srv-P07")
def test_death_during_a_request_fails_that_one_and_no_other(server, repository):
    gate = Gate(repository / "during", "death")
    ((pid, _),) = starts(repository / "during")
    with Asker(server) as asker:
        begun = asker.ask("during", "gate death")
        gate.wait_reached()
        waiting = [asker.ask("during", f"echo {n}") for n in range(CLIENTS)]
        metric = 'nv_inference_pending_request_count{model="during",version="1"}'
        wait_until(lambda: server.metrics()[metric] == CLIENTS, "the requests do not wait")
        os.kill(pid, signal.SIGKILL)
        reply = begun.result()
        assert (reply.status, reply.error) == (500, unhealthy("during_0", SIGKILLED))
        assert [future.result().status for future in waiting] == [200] * CLIENTS
    assert gate.arrivals == 1, "what had begun was not run again"
    assert server.metrics()['nv_inference_request_failure{model="during",reason="BACKEND",version="1"}'] == 1
    assert unhealthy("during_0", SIGKILLED) in server.output
    assert "instance 'during_0' is restarted" in server.output


@pytest.mark.spec("srv-P07")
def test_readiness_tells_the_truth_meanwhile(server, repository):
    directory = repository / "readiness"
    (directory / "gated").touch()
    gate = Gate(directory, "initialize")
    os.kill(int(told(server, "readiness", "pid")), signal.SIGKILL)
    gate.wait_reached()
    with Asker(server) as asker:
        waiting = asker.ask("readiness", "echo patience")
        assert server.get("/v2/health/ready").status == 400
        assert server.get("/v2/models/readiness/ready").status == 400
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/models/bystander/ready").status == 200
        assert told(server, "bystander", "echo unharmed") == "unharmed"
        assert not waiting.done()
        gate.open()
        assert waiting.result().status == 200
    assert server.get("/v2/models/readiness/ready").status == 200
    server.wait_ready()


def test_another_instance_takes_over(server, repository):
    """One of two processes dies in a request, and may not come back before the test allows it."""
    directory = repository / "pair"
    (directory / "gated").touch()
    death, start = Gate(directory, "death"), Gate(directory, "initialize")
    with Asker(server) as asker:
        begun = asker.ask("pair", "gate death")
        death.wait_reached()
        other = int(told(server, "pair", "pid"))
        (pid,) = {pid for pid, _ in starts(directory)} - {other}
        os.kill(pid, signal.SIGKILL)
        assert begun.result().status == 500
        assert begun.result().error in {unhealthy(f"pair_0_{n}", SIGKILLED) for n in (0, 1)}
        start.wait_reached()
        replies = [future.result() for future in [asker.ask("pair", "pid") for _ in range(CLIENTS)]]
        assert {reply.json["outputs"][0]["data"][0] for reply in replies} == {str(other)}
        assert server.get("/v2/models/pair/ready").status == 400
        start.open()
        server.wait_until("/v2/models/pair/ready", 200)


@pytest.mark.spec("srv-P07")
@pytest.mark.parametrize("model", ["stormy", "stormy_pair"])
def test_eight_clients_survive_three_deaths(server, model):
    """Of all their requests only those that had begun when a process was killed may fail, and only in one way."""
    crowd = Crowd(server, model)
    try:
        for _ in range(3):
            crowd.wait_for_more()
            pid = int(told(server, model, "pid"))
            os.kill(pid, signal.SIGKILL)
            crowd.wait_for_more()
    finally:
        failures = crowd.leave()
    texts = {unhealthy(instance, SIGKILLED) for instance in (f"{model}_0", f"{model}_0_0", f"{model}_0_1")}
    assert all(status == 500 and document["error"] in texts for status, document in failures), failures
    assert len(failures) <= 3 * CLIENTS
    server.wait_until(f"/v2/models/{model}/ready", 200)


@pytest.mark.spec("srv-P07")
def test_eight_clients_survive_a_model_that_kills_itself(server):
    crowd = Crowd(server, "bystander")
    try:
        for death in ("segv", "exit 3"):
            crowd.wait_for_more()
            assert ask(server, "bystander", death).status == 500
            crowd.wait_for_more()
    finally:
        failures = crowd.leave()
    assert {status for status, _ in failures} <= {500}
    server.wait_ready()
