"""The memory for tensors is full: a clear refusal, and service as before once there is room again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.connection import binary_body
from tests.support.gates import GATE, Gate
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import ServerProcess, serving

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

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


def send(server: ServerProcess, model: str, array: np.ndarray):
    """Send a binary tensor and ask for a binary one."""
    datatype = {np.dtype(np.uint8): "UINT8", np.dtype(np.uint32): "UINT32"}[array.dtype]
    parameters = {"binary_data_size": array.nbytes}
    tensor = {"name": "IN", "shape": list(array.shape), "datatype": datatype, "parameters": parameters}
    outputs = [{"name": "OUT", "parameters": {"binary_data": True}}]
    body, headers = binary_body({"inputs": [tensor], "outputs": outputs}, array.tobytes())
    return server.infer(model, body, headers)


def test_an_input_larger_than_the_limit(server):
    reply = send(server, "identity", np.zeros(5 * MIB, np.uint8))
    assert reply.status == 503
    assert reply.error == (
        f"no input memory left for model 'identity': 0 bytes are in flight and {5 * MIB} more do not fit into its limit of "
        f"{4 * MIB} bytes. Send fewer requests at once, or raise --model-memory-limit"
    )
    for size in (4 * MIB, 10, 3 * MIB):
        assert send(server, "identity", np.zeros(size, np.uint8)).status == 200


def test_inputs_in_flight_count_until_they_are_answered(server, repository):
    gate = Gate(repository / "gated", "execute")
    large = np.zeros(3 * MIB, np.uint8)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(send, server, "gated", large)
        gate.wait_reached()
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


def test_an_output_larger_than_the_limit(server):
    reply = send(server, "producer", np.array([5 * MIB], np.uint32))
    assert reply.status == 503
    assert f"an output of {5 * MIB} bytes does not fit into the output memory" in reply.error
    for size in (4 * MIB, 10, 3 * MIB, 4 * MIB):
        reply = send(server, "producer", np.array([size], np.uint32))
        assert (reply.status, len(reply.body) > size) == (200, True)
