"""The memory for tensors is full: a clear refusal, and service as before once there is room again."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.connection import binary_body, connected, post
from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import ServerProcess, serving

MIB = 1 << 20

GATED = GATE + IDENTITY.replace(
    "def execute(self, requests):",
    """def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")""",
)

# Answers with as many zeros as it is asked for.
PRODUCER = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(int(request.inputs()[0].as_numpy()[0]), np.uint8))])
            for request in requests
        ]
"""

# Keeps what it is sent, as one that collects statistics does, until it is told to let go.
KEEPER = """
class TritonPythonModel:
    kept = []
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            self.kept.append(array)
            if array[0] == 255:
                self.kept.clear()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array[:1])]))
        return responses
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def server(repository):
    config = identity_config("TYPE_UINT8")
    write_model(repository, "gated", GATED, config)
    write_model(repository, "keeper", KEEPER, config)
    write_model(repository, "identity", IDENTITY, config)
    write_model(
        repository, "producer", PRODUCER, config.replace("UINT8 dims", "UINT32 dims", 1).replace("UINT8", "UINT32", 1)
    )
    with serving(repository, flags=(f"--model-memory-limit={4 * MIB}",)) as server:
        pids = server.stub_pids()
        yield server
        assert server.stub_pids() == pids, "a process died of it"
        assert server.get("/v2/health/ready").status == 200


def most_of_a_request(model: str, nbytes: int) -> bytes:
    """The head of a request and nearly all of its tensor."""
    tensor = {"name": "IN", "shape": [nbytes], "datatype": "UINT8", "parameters": {"binary_data_size": nbytes}}
    body, headers = binary_body({"inputs": [tensor]}, bytes(nbytes))
    return post(f"/v2/models/{model}/infer", body, headers)[: -MIB // 2]


def send(server: ServerProcess, model: str, array: np.ndarray):
    """Send a binary tensor and ask for a binary one."""
    datatype = {np.dtype(np.uint8): "UINT8", np.dtype(np.uint32): "UINT32"}[array.dtype]
    parameters = {"binary_data_size": array.nbytes}
    tensor = {"name": "IN", "shape": list(array.shape), "datatype": datatype, "parameters": parameters}
    outputs = [{"name": "OUT", "parameters": {"binary_data": True}}]
    body, headers = binary_body({"inputs": [tensor], "outputs": outputs}, array.tobytes())
    return server.infer(model, body, headers)


def test_an_input_larger_than_the_limit(server, snapshot):
    reply = send(server, "identity", np.zeros(5 * MIB, np.uint8))
    assert reply.status == 400, "no other moment would be better"
    assert reply.error == snapshot
    for size in (4 * MIB, 10, 3 * MIB):
        assert send(server, "identity", np.zeros(size, np.uint8)).status == 200


def test_inputs_in_flight_count_until_they_are_answered(server, repository):
    gate = Gate(repository / "gated", "execute")
    large = np.zeros(3 * MIB, np.uint8)
    with ThreadPoolExecutor() as pool, gate.holding(lambda: send(server, "gated", large)) as first:
        reply = send(server, "gated", large)
        assert reply.status == 503
        assert "no input memory left for model 'gated'" in reply.error
        assert send(server, "identity", large).status == 200, "the limit is each model's own"
        small = pool.submit(send, server, "gated", large[:1000])
        gate.open()
        assert first.result().status == 200
        assert small.result().status == 200
    assert send(server, "gated", large).status == 200


def test_inputs_that_a_model_keeps(server):
    """The limit holds for those too; the model's owner reads why, and as soon as it lets go there is room."""
    replies = [send(server, "keeper", np.zeros(MIB, np.uint8)) for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 4 + [503] * 2
    assert f"{4 * MIB} bytes are in flight" in replies[-1].error
    assert send(server, "keeper", np.full(10, 255, np.uint8)).status == 200
    assert [send(server, "keeper", np.zeros(MIB, np.uint8)).status for _ in range(3)] == [200] * 3


def test_an_output_larger_than_the_limit(server, snapshot):
    reply = send(server, "producer", np.array([5 * MIB], np.uint32))
    assert reply.status == 503
    assert reply.error == snapshot
    for size in (4 * MIB, 10, 3 * MIB, 4 * MIB):
        reply = send(server, "producer", np.array([size], np.uint32))
        assert (reply.status, len(reply.body) > size) == (200, True)


@pytest.fixture
def small_server(tmp_path):
    """A server whose models together may take little more than each of them."""
    config = identity_config("TYPE_UINT8")
    for name in ("first", "second", "keeper"):
        write_model(tmp_path, name, KEEPER if name == "keeper" else IDENTITY, config)
    with serving(tmp_path, flags=(f"--model-memory-limit={8 * MIB}", f"--tensor-memory-limit={8 * MIB}")) as server:
        yield server


def test_models_share_the_memory_of_the_server(small_server):
    """Each stays within its own limit; all together do not."""
    assert send(small_server, "keeper", np.zeros(6 * MIB, np.uint8)).status == 200
    refused = send(small_server, "first", np.zeros(6 * MIB, np.uint8))
    assert refused.status == 503
    assert "no memory left for tensors: those of all models take" in refused.error
    assert refused.error.endswith("or raise --tensor-memory-limit")
    assert send(small_server, "second", np.zeros(100_000, np.uint8)).status == 200
    assert send(small_server, "keeper", np.full(1, 255, np.uint8)).status == 200
    wait_until(lambda: send(small_server, "first", np.zeros(2 * MIB, np.uint8)).status == 200, "it is not given back")


def test_a_client_that_sends_slowly_to_one_model_makes_room_for_another(small_server):
    sample = 'pybackend_input_memory_bytes{model="first",version="1"}'
    with connected(small_server.port) as slow:
        slow.send(most_of_a_request("first", 7 * MIB))
        wait_until(lambda: small_server.metrics()[sample] >= 6 * MIB, "the request does not arrive")
        large = np.zeros(3 * MIB, np.uint8)
        wait_until(lambda: send(small_server, "keeper", large).status == 200, "it is kept out", deadline_s=40)
        assert slow.at_end()
