"""How a server stops: what was taken is answered, models are finalized, and the status says whether time was enough."""

import http.client
import json
import os
import re
import signal
import threading
import time

import pytest

from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import identity_config, model_code, write_model
from tests.support.server import ServerProcess, free_of_processes, serving
from tests.support.thorough import thorough

GATED = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests
        ]

    def finalize(self):
        pass_gate(self.directory, "finalize")
        mark(self.directory, "finalized")
        import sys
        sys.stdout.write("the last words of a model, without an end of line")
"""
)

BODY = {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}


class Request:
    """An infer request under way, in a thread of its own."""

    def __init__(self, server: ServerProcess, model: str = "gated") -> None:
        self.outcome = None
        self._thread = threading.Thread(target=self._run, args=(server, model))
        self._thread.start()

    def _run(self, server: ServerProcess, model: str) -> None:
        try:
            self.outcome = server.infer(model, BODY)
        except (OSError, http.client.HTTPException) as error:
            self.outcome = error

    def wait(self):
        """The reply, or how the connection ended."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "the request has no answer"
        return self.outcome


@pytest.fixture
def repository(tmp_path):
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@pytest.fixture
def model(repository):
    """The directory of a model with a gate in ``execute`` (closed) and one in ``finalize`` (open)."""
    directory = write_model(repository, "gated", GATED, identity_config())
    Gate(directory, "finalize").open()
    return directory


def waiting_count(server: ServerProcess) -> float:
    return server.metrics()['nv_inference_pending_request_count{model="gated",version="1"}']


def connect_fails(server: ServerProcess) -> bool:
    try:
        server.get("/v2/health/live")
    except (ConnectionError, http.client.HTTPException):
        return True
    return False


@pytest.mark.spec("srv-P05", "srv-P06", "pb-F01")
def test_requests_under_way_are_answered_and_models_finalized(repository, model, whole_starts):
    gate = Gate(model, "execute")
    with serving(repository) as server:
        metrics_port = server.metrics_port
        stubs = server.stub_pids()
        begun = Request(server)
        gate.wait_reached()
        waiting = Request(server)
        wait_until(lambda: waiting_count(server) == 1, "the second request does not wait")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(r"Signal \(15\) received\.")
        server.wait_for(r"Waiting for in-flight requests to complete\.")
        wait_until(lambda: connect_fails(server), "new connections are still accepted")
        assert server.request("GET", "/metrics", port=metrics_port).status == 200, "the metrics stay until the end"
        assert not (model / "finalized").exists()
        gate.open()
        for request in (begun, waiting):
            reply = request.wait()
            assert reply.json["outputs"][0]["data"] == [1, 2]
            assert reply.headers["connection"] == "close"
        assert server.wait() == 0
        assert (model / "finalized").read_text() == "x"
        assert "successfully unloaded 'gated' version 1" in server.output
        assert free_of_processes(stubs)


class KeptConnection:
    """A connection that is used as long as the server keeps it, in a thread of its own."""

    def __init__(self, server: ServerProcess, path: str, body: bytes | None) -> None:
        self.answers = 0
        self.statuses: set[int] = set()
        self.lost: BaseException | None = None
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.connect()
        self._connection.auto_open = 0  # a second connection would hide that the first one was lost
        self._thread = threading.Thread(target=self._run, args=(path, body))
        self._thread.start()

    def _run(self, path: str, body: bytes | None) -> None:
        try:
            while True:
                self._connection.request("GET" if body is None else "POST", path, body)
                reply = self._connection.getresponse()
                reply.read()
                self.answers += 1
                self.statuses.add(reply.status)
                if reply.getheader("connection") == "close":
                    return
        except (OSError, http.client.HTTPException) as error:
            self.lost = error
        finally:
            self._connection.close()

    def wait(self) -> BaseException | None:
        """How the connection was lost; None if the server has said that it ends."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "the connection does not end"
        return self.lost


@pytest.mark.spec("srv-P05")
@pytest.mark.parametrize(("front_ends", "stops"), [(0, 1), *thorough((0, 20), (2, 20))])
def test_busy_connections_lose_no_request(repository, front_ends, stops):
    """Requests that the server answers itself, of any kind, and those that a front end leaves to the engine's process."""
    write_model(repository, "identity", model_code("identity"), identity_config())
    for _ in range(stops):
        stop_amid_requests(repository, front_ends)


def stop_amid_requests(repository, front_ends):
    infer = ("/v2/models/identity/infer", json.dumps(BODY).encode())
    paths = [infer, infer, ("/v2/models/identity/generate", b'{"IN": [1, 2]}'), ("/v2/models/identity", None)]
    with serving(repository, flags=(f"--front-ends={front_ends}", "--exit-keepalive-secs=60")) as server:
        kept = [KeptConnection(server, *paths[number % len(paths)]) for number in range(64)]
        wait_until(lambda: all(each.answers > 1 or each.lost for each in kept), "some get no answer")
        server.process.send_signal(signal.SIGTERM)
        assert [each.wait() for each in kept] == [None] * len(kept)
        assert {status for each in kept for status in each.statuses} == {200}
        assert server.wait() == 0


@pytest.mark.one_process  # each front end accepts by itself, and tells the number of its connections once a second
@pytest.mark.spec("srv-P05")
def test_a_kept_connection_has_one_more_request(repository, model):
    """Used, unused, or with a part of a request on it. Probes see that the server is going."""
    gate = Gate(model, "execute")
    body = json.dumps(BODY).encode()
    with serving(repository, flags=("--exit-keepalive-secs=60",)) as server:
        connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(4)]
        unused, begun, probe, used = connections
        for connection in connections:
            connection.connect()
        begun.putrequest("POST", "/v2/models/gated/infer")
        begun.putheader("Content-Length", str(len(body)))
        begun.endheaders(body[:-1])
        for connection in (probe, used):  # the last one is accepted after the others
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(r"Clients have 4 open connections: what still comes is answered, for \d+ s at most\.")
        probe.request("GET", "/v2/health/ready")
        reply = probe.getresponse()
        assert (reply.status, reply.getheader("connection")) == (503, "close")
        assert json.loads(reply.read()) == {"ready": False, "error": "Server exiting"}
        begun.send(body[-1:])
        for connection in (used, unused):
            connection.request("POST", "/v2/models/gated/infer", body)
        gate.open()
        for connection in (used, unused, begun):
            reply = connection.getresponse()
            assert (reply.status, reply.getheader("connection")) == (200, "close")
            assert json.loads(reply.read())["outputs"][0]["data"] == [1, 2]
        assert server.wait() == 0, "nobody is left to wait for"
        for connection in connections:
            connection.close()


@pytest.mark.spec("srv-P05")
def test_requests_that_come_too_late_are_refused(repository, model):
    """After the grace, the only way for one to come is a connection on which it had begun."""
    gate = Gate(model, "execute")
    with serving(repository, flags=("--exit-keepalive-secs=0",)) as server:
        late = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        late.putrequest("POST", "/v2/models/gated/infer")
        body = json.dumps(BODY).encode()
        late.putheader("Content-Length", str(len(body)))
        late.endheaders(body[:-1])
        begun = Request(server)
        gate.wait_reached()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(r"Waiting for in-flight requests")
        late.send(body[-1:])
        reply = late.getresponse()
        assert (reply.status, reply.getheader("connection")) == (503, "close")
        assert json.loads(reply.read())["error"] == (
            "[request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting new inference requests"
        )
        late.close()
        gate.open()
        assert begun.wait().status == 200
        assert server.wait() == 0


@pytest.mark.spec("srv-P05")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_connections_delay_the_end_for_the_grace_alone(repository, model, number):
    Gate(model, "execute").open()
    with serving(repository, flags=("--exit-timeout-secs=3600", "--exit-keepalive-secs=1")) as server:
        connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(3)]
        connections.append(http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=60))
        for connection in connections:
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
        never_used = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        never_used.connect()
        assert server.stop(number) == 0
        for connection in (*connections, never_used):
            connection.close()


@pytest.mark.spec("srv-P05")
def test_it_says_what_it_waits_for(repository, model):
    """At once, and again while it lasts: the model, its requests, the time, and the way to end it."""
    gate = Gate(model, "execute")
    with serving(repository, flags=("--exit-timeout-secs=60",)) as server:
        first = Request(server)
        gate.wait_reached()
        second = Request(server)
        wait_until(lambda: waiting_count(server) == 1, "the second request does not wait")
        server.process.send_signal(signal.SIGTERM)
        said = (
            r"Timeout (\d+): Found 1 model versions that have in-flight inferences: 'gated' version 1 \(2 requests\)\. "
        )
        found = server.wait_for(said + r"The server waits at most \1 s for this, its exit timeout; a second Ctrl-C or ")
        assert int(found[1]) >= 55
        server.wait_for(f"(?s){said}.*{said}")
        gate.open()
        assert (first.wait().status, second.wait().status) == (200, 200)
        assert server.wait() == 0


@pytest.mark.spec("srv-P05")
def test_it_says_which_model_is_being_finalized(repository, model):
    gate = Gate(model, "finalize")
    gate.close()
    Gate(model, "execute").open()
    with serving(repository) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(r"Timeout \d+: Found 1 live models: 'gated' version 1 \(being finalized\)\. The server waits")
        gate.open()
        assert server.wait() == 0


@pytest.mark.spec("srv-P05")
def test_it_says_nothing_of_the_kind_when_there_is_nothing_to_wait_for(repository, model):
    Gate(model, "execute").open()
    with serving(repository) as server:
        assert server.infer("gated", BODY).status == 200
        assert server.stop() == 0
        assert "Timeout" not in server.output


@pytest.mark.spec("srv-P05")
def test_the_time_is_over(repository, model, snapshot):
    """A model that never answers: everybody is told, the model's process ends, the status is 1."""
    gate = Gate(model, "execute")
    with serving(repository, flags=("--exit-timeout-secs=1",)) as server:
        stubs = server.stub_pids()
        requests = [Request(server) for _ in range(3)]
        gate.wait_reached()
        wait_until(lambda: waiting_count(server) == 2, "the other requests do not wait")
        begin_s = time.monotonic()
        assert server.stop() == 1
        assert time.monotonic() - begin_s > 0.9
        assert "Exit timeout expired. Exiting immediately." in server.output
        errors = sorted((reply.status, reply.error) for reply in (request.wait() for request in requests))
        assert errors[0][0] == 500
        assert errors[0][1].startswith("Stub process 'gated_0' is not healthy")
        assert errors[0][1] == snapshot
        assert errors[1:] == [(503, "the request to model 'gated' was still waiting when the server stopped")] * 2
        assert free_of_processes(stubs)


@pytest.mark.spec("srv-P05")
def test_the_time_is_over_while_a_model_finalizes(repository, model):
    Gate(model, "finalize").close()
    Gate(model, "execute").open()
    with serving(repository, flags=("--exit-timeout-secs=1",)) as server:
        stubs = server.stub_pids()
        begin_s = time.monotonic()
        assert server.stop() == 1
        assert time.monotonic() - begin_s > 0.9
        assert "instance 'gated_0' missed its" in server.output
        assert "Exit timeout expired. Exiting immediately." in server.output
        assert free_of_processes(stubs)


def test_idle_models_are_finalized_although_another_one_hangs(repository, model):
    idle = write_model(repository, "idle", GATED, identity_config())
    Gate(idle, "finalize").open()
    gate = Gate(model, "execute")
    with serving(repository, flags=("--exit-timeout-secs=3",)) as server:
        request = Request(server)
        gate.wait_reached()
        assert server.stop() == 1
        assert request.wait().status == 500
        assert (idle / "finalized").exists()
        assert "successfully unloaded 'idle' version 1" in server.output
        cut_short = "'gated' version 1 is unloaded, but its last requests or `finalize` did not end in time"
        assert cut_short in server.output
        assert not (model / "finalized").exists()


@pytest.mark.thorough
def test_drain_and_finalize_share_one_deadline(repository, model):
    """A request that takes its time leaves ``finalize`` the rest of it, not as much again."""
    Gate(model, "finalize").close()
    gate = Gate(model, "execute")
    with serving(repository, flags=("--exit-timeout-secs=5",)) as server:
        request = Request(server)
        gate.wait_reached()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(r"Waiting for in-flight requests")
        begin_s = time.monotonic()
        wait_until(lambda: time.monotonic() - begin_s > 4, "time stands still")
        gate.open()
        assert request.wait().status == 200
        assert server.wait() == 1
        limit = re.search(r"instance 'gated_0' missed its ([\d.]+) s stop limit", server.output)
        assert limit is None or float(limit[1]) < 2, "it has 5 s of its own"  # there may be no time left at all


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(repository, model, first):
    gate = Gate(model, "execute")
    with serving(repository, flags=("--exit-timeout-secs=3600",)) as server:
        stubs = server.stub_pids()
        request = Request(server)
        gate.wait_reached()
        server.process.send_signal(first)
        server.wait_for(r"Waiting for in-flight requests")
        assert server.stop(signal.SIGINT) == 1
        assert free_of_processes(stubs)
        assert not hasattr(request.wait(), "status") or request.wait().status >= 500


def test_a_second_signal_ends_finalize_at_once(repository, model, whole_starts):
    Gate(model, "finalize").close()
    Gate(model, "execute").open()
    with serving(repository, flags=("--exit-timeout-secs=3600",)) as server:
        stubs = server.stub_pids()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(r"Found 1 live models")
        assert server.stop() == 1
        assert "Second signal received: running requests are cut short." in server.output
        assert free_of_processes(stubs)


@pytest.mark.spec("pb-E14")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.thorough
def test_a_signal_to_the_whole_group_stops_it_in_order(repository, model, number):
    """Ctrl-C reaches the server and whatever shares its terminal; models live until they are finalized."""
    gate = Gate(model, "execute")
    with serving(repository, process_group=0) as server:
        request = Request(server)
        gate.wait_reached()
        for pid in server.stub_pids():
            os.kill(pid, number)  # even if it were in the group
        os.killpg(server.process.pid, number)
        server.wait_for(r"Waiting for in-flight requests")
        gate.open()
        assert request.wait().status == 200
        assert server.wait() == 0
        assert (model / "finalized").read_text() == "x"


@pytest.mark.spec("srv-P06")
def test_every_instance_is_finalized_and_nothing_it_printed_is_lost(repository, model):
    (model / "config.pbtxt").write_text(identity_config(extra="instance_group [ { count: 3 kind: KIND_CPU } ]"))
    with serving(repository) as server:
        assert server.stop() == 0
        assert (model / "finalized").read_text() == "xxx"
        assert server.output.count("the last words of a model, without an end of line") == 3
