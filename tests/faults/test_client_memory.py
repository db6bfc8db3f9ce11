"""What clients do to shared memory that they have registered, and what becomes of it when someone dies."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.client_memory import FLAG, ClientRegion, client_region, document
from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

pytestmark = pytest.mark.spec("srv-H29")

COUNT = 50_000
NBYTES = 4 * COUNT

GATED = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        answers = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            if array[0] < 0:
                pass_gate(self.directory, "execute")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * 2)]))
        return answers
"""
)
"""Answers twice its input; waits at a gate if the first element is negative."""

VIEW = 'parameters { key: "CLIENT_MEMORY" value: { string_value: "view" } }'
PAIRS = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
max_batch_size: 2
dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("client_memory") / "models"


@pytest.fixture(scope="module")
def server(repository):
    for name in ("gated", "killed", "left"):
        write_model(repository, name, GATED, identity_config())
    write_model(repository, "viewer", GATED, identity_config(extra=VIEW))
    write_model(repository, "pairs", IDENTITY, PAIRS)
    with serving(repository, flags=(FLAG,)) as server:
        yield server


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def halves(region):
    """The first half as the source of an input, the second as the destination of an output."""
    return region.part(NBYTES), region.part(NBYTES, NBYTES)


def holders(server, region):
    """The server's processes that have the object open or mapped."""
    found = []
    for pid in [server.process.pid, *server.stub_pids()]:
        links = []
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                links.append(os.readlink(descriptor))
            except FileNotFoundError:
                continue
        maps = Path(f"/proc/{pid}/maps").read_text()
        if region.path in maps or any(link.startswith(region.path) for link in links):
            found.append(pid)
    return found


@pytest.mark.parametrize("model", ["gated", "viewer"])
def test_a_region_is_unregistered_while_a_request_uses_it(server, repository, pool, model):
    gate = Gate(repository / model, "execute")
    gate.close()
    arrivals = gate.arrivals
    with client_region(server, 2 * NBYTES) as region:
        source = region.array(count=COUNT)
        source[:] = 1
        assert server.infer(model, document([COUNT], *halves(region))).status == 200
        source[:] = -1
        running = pool.submit(server.infer, model, document([COUNT], *halves(region)))
        gate.wait_reached(arrivals + 1)
        assert region.unregister(server).status == 200
        assert server.infer(model, document([COUNT], *halves(region))).status == 404
        assert holders(server, region)
        gate.open()
        assert running.result().status == 200
        np.testing.assert_array_equal(region.array(offset=NBYTES), -2)
        wait_until(lambda: not holders(server, region), lambda: f"{holders(server, region)} still have the region")
        assert region.register(server).status == 200
        source[:] = 3
        assert server.infer(model, document([COUNT], *halves(region))).status == 200
        assert region.array(offset=NBYTES)[-1] == 6
        del source
    wait_until(lambda: not holders(server, region), lambda: f"{holders(server, region)} still have the region")


@pytest.mark.parametrize("model", ["gated", "viewer"])
def test_a_region_that_shrinks_fails_its_own_requests(server, model):
    pids = server.stub_pids()
    with client_region(server, 2 * NBYTES) as region:
        region.array(count=COUNT)[:] = 1
        os.truncate(region.path, NBYTES)
        reply = server.infer(model, document([COUNT], *halves(region)))
        text = "a shared memory object has been made smaller since its region was registered"
        assert reply.status == 400
        assert text in reply.error
        os.truncate(region.path, 4096)
        reply = server.infer(model, document([COUNT], region.part(NBYTES), None))
        assert reply.status == 400
        assert reply.error.startswith(f"[request id: <id_unknown>] {text}")
        os.truncate(region.path, 2 * NBYTES)
        assert server.infer(model, document([COUNT], *halves(region))).status == 200
    assert server.stub_pids() == pids


def test_a_region_that_shrinks_spares_the_rest_of_its_batch(server, pool):
    other = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [5, 6]}]}
    with client_region(server, 2 * NBYTES) as region:
        os.truncate(region.path, 4096)
        for first, second in ((True, False), (False, True), (True, True)):
            replies = [
                pool.submit(server.infer, "pairs", document([1, COUNT], region.part(NBYTES), None) if shrunk else other)
                for shrunk in (first, second)
            ]
            assert [reply.result().status for reply in replies] == [
                400 if shrunk else 200 for shrunk in (first, second)
            ]
            for shrunk, reply in zip((first, second), replies, strict=True):
                if not shrunk:
                    assert reply.result().json["outputs"][0]["data"] == [5, 6]


def test_a_view_that_shrinks_ends_the_models_process_and_nothing_else(server, repository, pool):
    gate = Gate(repository / "viewer", "execute")
    gate.close()
    arrivals = gate.arrivals
    with client_region(server, 2 * NBYTES) as region:
        region.array(count=COUNT)[:] = -1
        running = pool.submit(server.infer, "viewer", document([COUNT], *halves(region)))
        gate.wait_reached(arrivals + 1)
        os.truncate(region.path, 0)
        gate.open()
        reply = running.result()
        assert reply.status == 500
        assert "The process was killed by signal 7 (SIGBUS)" in reply.error
        os.truncate(region.path, 2 * NBYTES)
        region.array(count=COUNT)[:] = 2
        server.wait_until("/v2/models/viewer/ready", 200)
        assert server.infer("viewer", document([COUNT], *halves(region))).status == 200
        assert region.array(offset=NBYTES)[-1] == 4


def test_another_object_of_the_same_name_is_another_one(server):
    with client_region(server, 2 * NBYTES) as region:
        old = region.array(count=COUNT)
        old[:] = 1
        Path(region.path).unlink()
        new = ClientRegion(2 * NBYTES, region.name)
        try:
            new.array(count=COUNT)[:] = 10
            assert server.infer("gated", document([COUNT], *halves(region))).status == 200
            assert region.array(offset=NBYTES)[0] == 2
            assert not new.array(offset=NBYTES)[0]
            region.unregister(server)
            assert new.register(server).status == 200
            assert server.infer("gated", document([COUNT], *halves(region))).status == 200
            assert new.array(offset=NBYTES)[0] == 20
        finally:
            new.close()
        del old


def test_a_models_process_is_killed_in_the_middle_of_a_request(server, repository, pool):
    gate = Gate(repository / "killed", "execute")
    (pid,) = (pid for pid in server.stub_pids() if server_name(pid).startswith("killed"))
    with client_region(server, 2 * NBYTES) as region:
        region.array(count=COUNT)[:] = -1
        running = pool.submit(server.infer, "killed", document([COUNT], *halves(region)))
        gate.wait_reached()
        os.kill(pid, signal.SIGKILL)
        assert running.result().status == 500
        gate.open()
        server.wait_until("/v2/models/killed/ready", 200)
        assert server.infer("killed", document([COUNT], *halves(region))).status == 200
        assert region.array(offset=NBYTES)[-1] == -2
    wait_until(lambda: not holders(server, region), lambda: f"{holders(server, region)} still have the region")


def server_name(pid):
    return Path(f"/proc/{pid}/comm").read_text()


CLIENT = """
import json, sys, urllib.request
from tests.support.client_memory import ClientRegion, document

url, nbytes = sys.argv[1], int(sys.argv[2])
region = ClientRegion(2 * nbytes, sys.argv[3])
region.array()[:] = -1

def post(path, body):
    return urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode()))

post(f"/v2/systemsharedmemory/region/{region.name}/register", {"key": region.key, "byte_size": 2 * nbytes})
post("/v2/models/left/infer", document([nbytes // 4], region.part(nbytes), region.part(nbytes, nbytes)))
"""


def test_a_client_is_killed_in_the_middle_of_its_request(server, repository):
    gate = Gate(repository / "left", "execute")
    name = f"pybackend_test_left_{os.getpid()}"
    client = subprocess.Popen([sys.executable, "-c", CLIENT, f"http://{server.url}", str(NBYTES), name])
    try:
        gate.wait_reached()
        client.kill()
        client.wait()
        gate.open()
        # The region is the server's until someone unregisters it: others may use it too.
        assert server.get(f"/v2/systemsharedmemory/region/{name}/status").status == 200
        part = {"shared_memory_region": name, "shared_memory_byte_size": 16}
        assert server.infer("left", document([4], part, None)).json["outputs"][0]["data"] == [-2] * 4
        assert server.request("POST", f"/v2/systemsharedmemory/region/{name}/unregister").status == 200
    finally:
        client.kill()
        client.wait()
        Path(f"/dev/shm/{name}").unlink()
    for pid in (server.process.pid, *server.stub_pids()):
        wait_until(lambda pid=pid: name not in Path(f"/proc/{pid}/maps").read_text(), "the memory is still mapped")
