"""What calls hold is counted until it is released: requests that take long, tensors whose model goes or whose time is
over."""

import asyncio
import json

import numpy as np
import pytest
import uvloop
from tritonclient.grpc import service_pb2

from tests.support.engine import engine_on
from tests.support.gates import GATE, Gate
from tests.support.grpc_calls import INFER, framed, grpc_port
from tests.support.repositories import IDENTITY, identity_config, write_model

LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
UNLOAD = "/inference.GRPCInferenceService/RepositoryModelUnload"
PADDING_BYTES = 600_000
KEPT_BYTES = 1_000_000
ROOMY = {"id_4": 2**30, "id_5": 2**20}

SLOW = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        pass_gate(args["model_repository"], "initialize")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
)
CONFIG = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def run(scenario, repository, loaded):
    """Run a coroutine with a port, whose engine has loaded some models, and a client."""

    async def serve():
        async with (
            engine_on(repository, explicit=True, startup_models=loaded) as engine,
            grpc_port(engine, KEPT_BYTES) as port,
            await port.connect(**ROOMY) as client,
        ):
            await scenario(port, client)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(serve(), 55))


def load_request():
    made = service_pb2.RepositoryModelLoadRequest(model_name="slow")
    made.parameters["config"].string_param = json.dumps(CONFIG) + " " * PADDING_BYTES
    return framed(made.SerializeToString())


def test_a_long_load_keeps_its_request_in_the_account(tmp_path):
    gate = Gate(write_model(tmp_path, "slow", SLOW, identity_config()), "initialize")

    async def scenario(port, client):
        first = client.call(LOAD, load_request())
        await asyncio.to_thread(gate.wait_reached)
        assert port.frontend.client_memory.used_bytes > PADDING_BYTES
        status, message = await client.status(client.call(LOAD, load_request()))
        assert status == "14"
        assert message.startswith("the server is overloaded")
        gate.open()
        assert (await client.status(first))[0] == "0"
        assert port.frontend.client_memory.used_bytes == 0

    run(scenario, tmp_path, ())


@pytest.mark.parametrize("end", ["unload", "deadline"])
def test_a_large_tensor_that_is_not_used_any_more(tmp_path, end):
    write_model(tmp_path, "numbers", IDENTITY, identity_config())
    made = service_pb2.ModelInferRequest(model_name="numbers")
    made.inputs.add(name="IN", datatype="FP32", shape=[200_000])
    made.raw_input_contents.append(np.arange(200_000, dtype=np.float32).tobytes())
    whole = framed(made.SerializeToString())

    async def scenario(port, client):
        timeout = [("grpc-timeout", "300m")] if end == "deadline" else []
        stream = client.open(INFER, *timeout)
        client.send(stream, whole[:500_000])
        await client.settled()
        (connection,) = port.frontend.connections
        if end == "deadline":
            assert (await client.status(stream))[0] == "4"
        else:
            assert connection.peer.arriving_count == 1
            unload = framed(service_pb2.RepositoryModelUnloadRequest(model_name="numbers").SerializeToString())
            assert (await client.status(client.call(UNLOAD, unload)))[0] == "0"
            client.send(stream, whole[500_000:], ended=True)
            status, message = await client.status(stream)
            assert status in {"5", "14"}, message
            assert "'numbers'" in message
        assert (
            connection.peer.arriving_count == connection.http2.unreturned_bytes == connection.peer.flow.held_bytes == 0
        )
        assert port.frontend.client_memory.used_bytes == 0

    run(scenario, tmp_path, ("numbers",))
