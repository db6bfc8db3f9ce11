"""gRPC when things die: models, clients and the server itself, in the middle of calls."""

import os
import queue
import signal
import subprocess
import sys

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2

from tests.faults.callers import write_streamer
from tests.faults.leaks import descriptors, figure
from tests.faults.victims import starts, write_victim
from tests.support.gates import Gate, wait_until
from tests.support.log_lines import server_tracebacks
from tests.support.server import serving

DEADLINE_S = 30
STOPPING = "GRPC server is shutting down and has stopped accepting new requests."


def request(model, text, request_id=""):
    made = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    made.inputs.add(name="COMMAND", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    return made


def unary(channel, model, text):
    call = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelInferResponse.FromString,
    )
    return call.future(request(model, text), timeout=DEADLINE_S)


class Stream:
    """A stream of requests that stays open until it is told to end."""

    def __init__(self, channel):
        self.requests = queue.SimpleQueue()
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        self.answers = call(iter(self.requests.get, None), timeout=DEADLINE_S)

    def ask(self, model, text):
        self.requests.put(request(model, text))

    def next(self):
        answer = next(self.answers)
        return answer.error_message or answer.infer_response.raw_output_contents[0][4:].decode().rstrip()

    def status(self):
        with pytest.raises(grpc.RpcError) as caught:
            next(self.answers)
        self.requests.put(None)
        return caught.value.code(), caught.value.details()


def test_a_stub_that_dies_in_the_middle_of_its_streams(tmp_path):
    directory = write_streamer(tmp_path, "streamer")
    with serving(tmp_path) as server, grpc.insecure_channel(server.grpc_url) as channel:
        gate = Gate(directory, "gate")
        streams = [Stream(channel) for _ in range(3)]
        for stream in streams:
            stream.ask("streamer", "gate gate")
            assert stream.next() == "before"
        gate.wait_reached(3)
        os.kill(starts(directory)[-1][0], signal.SIGKILL)
        for stream in streams:
            assert "streamer" in stream.next()  # the error of a dead stub names its model
        wait_until(lambda: len(starts(directory)) == 2, "the model does not come back")
        server.wait_until("/v2/models/streamer/ready", 200)
        for stream in streams:  # they go on
            stream.ask("streamer", "echo again")
            assert stream.next() == "again"
            stream.requests.put(None)
            assert not list(stream.answers)
        assert not server_tracebacks(server.output)


CLIENT = """
import queue, sys
import numpy as np, tritonclient.grpc as client

url = sys.argv[1]
one = client.InferenceServerClient(url)
tensor = client.InferInput("COMMAND", [1], "BYTES")
tensor.set_data_from_numpy(np.array([sys.argv[2]], object))
one.start_stream(lambda result, error: print("answer", flush=True) if error is None else None)
one.async_stream_infer("streamer", [tensor])
sys.stdin.read()
"""


def test_clients_that_are_killed_in_the_middle_of_their_streams(tmp_path):
    """Requests are cancelled, and neither descriptors nor memory stay behind."""
    directory = write_streamer(tmp_path, "streamer")
    with serving(tmp_path, flags=(f"--model-memory-limit={8 << 20}",)) as server:
        before = None
        for number in range(3):
            command = f"until_cancelled {number}" if number % 2 else f"count 3000 100000 count{number}"
            with subprocess.Popen(
                [sys.executable, "-c", CLIENT, server.grpc_url, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as process:
                assert process.stdout.readline() == b"answer\n"
                process.kill()
            if number % 2:
                wait_until((directory / f"{number}.cancelled").exists, "the model is not told")
            now = descriptors(server)
            before = before or now
        wait_until(lambda: descriptors(server)["socket"] <= before["socket"], "sockets stay open")
        with client.InferenceServerClient(server.grpc_url) as own:
            assert own.is_model_ready("streamer")


def test_a_server_that_stops(tmp_path):
    """Requests in flight are answered; calls that wait for requests end; nobody waits for the exit timeout."""
    gate = Gate(write_victim(tmp_path, "victim"), "gate")
    streamer = Gate(write_streamer(tmp_path, "streamer"), "gate")
    with serving(tmp_path, flags=("--exit-timeout-secs=600",)) as server:
        with grpc.insecure_channel(server.grpc_url) as channel, grpc.insecure_channel(server.grpc_url) as other:
            idle, busy = Stream(other), Stream(channel)
            busy.ask("streamer", "gate gate")
            assert busy.next() == "before"
            idle.ask("streamer", "echo here")
            assert idle.next() == "here"
            call = unary(channel, "victim", "gate gate")
            gate.wait_reached()
            server.process.send_signal(signal.SIGTERM)
            assert idle.status() == (grpc.StatusCode.UNAVAILABLE, STOPPING)
            refused = unary(channel, "victim", "echo late").exception()
            assert refused.code() is grpc.StatusCode.UNAVAILABLE
            busy.ask("victim", "echo late")
            assert busy.next() == STOPPING
            gate.open()
            streamer.open()
            assert call.result().raw_output_contents[0][4:] == b"gate"
            assert busy.next() == "after"
            assert busy.status() == (grpc.StatusCode.UNAVAILABLE, STOPPING)
        assert server.wait() == 0
        assert not server_tracebacks(server.output)


def test_a_second_signal_cuts_calls_short(tmp_path):
    gate = Gate(write_victim(tmp_path, "victim"), "gate")
    with serving(tmp_path, flags=("--exit-timeout-secs=600",)) as server:
        with grpc.insecure_channel(server.grpc_url) as channel:
            call = unary(channel, "victim", "gate gate")
            gate.wait_reached()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("Waiting for in-flight requests")
            server.process.send_signal(signal.SIGTERM)
            assert call.exception().code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}
        assert server.wait() == 1


@pytest.mark.thorough
def test_clients_that_come_and_go_leave_no_memory(tmp_path):
    write_victim(tmp_path, "victim")
    tensor = client.InferInput("COMMAND", [1], "BYTES")
    tensor.set_data_from_numpy(np.array(["echo " + "x" * 100_000], object))
    with serving(tmp_path, flags=(f"--model-memory-limit={4 << 20}",)) as server:

        def visit(count):
            for _ in range(count):
                with client.InferenceServerClient(
                    server.grpc_url, channel_args=[("grpc.use_local_subchannel_pool", 1)]
                ) as own:
                    for _ in range(5):
                        own.infer("victim", [tensor])
                    own.async_infer("victim", [tensor], lambda result, error: None).cancel()

        visit(20)
        before = descriptors(server), figure(server, "VmRSS")
        visit(100)
        wait_until(lambda: descriptors(server)["socket"] <= before[0]["socket"], "sockets stay open")
        assert figure(server, "VmRSS") <= before[1] + 10_000
