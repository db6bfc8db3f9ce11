"""Clients that do not read their answers: how much is kept for them, and that others are served."""

import json
import zlib
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.e2e.http.models import GENERATOR
from tests.support.connection import connected, post
from tests.support.ensembles import step, write_ensemble
from tests.support.gates import wait_until
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import DEADLINE_S

MIB = 1 << 20
COUNT = 2 * MIB
LIMIT = 40 * MIB
"""Room for two answers of ``COUNT`` numbers."""

START = 10**15
"""Numbers of so many digits make JSON twice as long as the tensor."""


@served(flags=(f"--http-memory-limit={LIMIT}",))
def server(repository):
    config = f"""
        backend: "python"
        input [ {tensors(IN=("TYPE_INT64", [2]))} ] output [ {tensors(OUT=("TYPE_INT64", [-1]))} ]
    """
    write_model(repository, "generator", GENERATOR, config)


def generate(count, start=START, *, binary=False, model="generator"):
    tensor = {"name": "IN", "datatype": "INT64", "shape": [2], "data": [count, start]}
    document = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
    return post(f"/v2/models/{model}/infer", json.dumps(document).encode())


def numbers_of(reply):
    return np.fromstring(reply.body.partition(b'"data":[')[2][:-4].decode(), sep=",", dtype=np.int64)


def private_bytes(server):
    """What the server's process keeps beside shared memory."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.spec("srv-H15")
def test_the_decompressed_bytes_of_a_body_count(server):
    """Fifty kilobytes that become more than the limit."""
    body = zlib.compress(b'{"inputs":[' + b" " * (LIMIT + MIB), 1)
    for _ in range(2):
        with connected(server.port) as connection:
            connection.send(post("/v2/models/generator/infer", body, {"Content-Encoding": "deflate"}))
            reply = connection.reply()
            assert (reply.status, "--http-memory-limit" in reply.error) == (503, True)
            connection.send(generate(3))
            assert numbers_of(connection.reply()).tolist() == [START, START + 1, START + 2]


@pytest.mark.one_process  # each front end has its part of the memory for clients
@pytest.mark.parametrize("binary", [False, True], ids=["JSON", "binary"])
def test_answers_that_nobody_reads(server, binary):
    """Nine of them, of which the limit allows two; and none is kept as text, which is longer and made as it is read."""
    with connected(server.port) as connection:
        connection.send(generate(COUNT))
        assert (numbers_of(connection.reply()) == np.arange(START, START + COUNT)).all()
    before = private_bytes(server)
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(server.port, receive_buffer_bytes=4096)) for _ in range(9)]
        for connection in idle:
            connection.send(generate(COUNT, binary=binary))
        for connection in idle:
            connection.wait_for_bytes(20)
        refused = [connection for connection in idle if connection.begins_with(b"HTTP/1.1 503")]
        assert len(refused) == 7
        assert private_bytes(server) - before < 40 * MIB
        for connection in refused:
            assert "--http-memory-limit" in connection.reply().error
            connection.send(generate(3))
            assert numbers_of(connection.reply()).tolist() == [START, START + 1, START + 2]
    with connected(server.port) as connection:

        def served():
            connection.send(generate(COUNT))
            reply = connection.reply()
            return reply.status == 200 and (numbers_of(reply) == np.arange(START, START + COUNT)).all()

        wait_until(served, "what was kept for clients that have gone is not free")


@pytest.mark.one_process  # as above: clients of two front ends do not need each other's memory
def test_slow_clients_make_room(server):
    """They keep what they have for as long as nobody needs it, and only while they are slow."""
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(server.port, receive_buffer_bytes=4096)) for _ in range(2)]
        for connection in idle:
            connection.send(generate(COUNT))
            connection.wait_for_bytes(20)
        honest = stack.enter_context(connected(server.port))

        def served():
            honest.send(generate(COUNT))
            return honest.reply().status == 200

        wait_until(served, "clients that do not read keep out those who do")
        assert server.wait_for("Closing the connection of a slow client")


def test_large_json_comes_in_chunks(server):
    """Its length is not known when it begins; HTTP/1.0, which has no chunks, gets it whole."""
    with connected(server.port) as connection:
        for _ in range(2):
            connection.send(generate(20_000))
            reply = connection.reply()
            assert reply.headers["transfer-encoding"] == "chunked"
            assert (numbers_of(reply) == np.arange(START, START + 20_000)).all()
        connection.send(generate(20_000).replace(b"HTTP/1.1", b"HTTP/1.0"))
        reply = connection.reply()
        assert "transfer-encoding" not in reply.headers
        assert (numbers_of(reply) == np.arange(START, START + 20_000)).all()
        assert connection.at_end()


@served(flags=(f"--model-memory-limit={LIMIT}",))
def small_outputs(repository):
    """A server whose models may hold less than the responses of all clients."""
    config = f"""
        backend: "python"
        input [ {tensors(IN=("TYPE_INT64", [2]))} ] output [ {tensors(OUT=("TYPE_INT64", [-1]))} ]
    """
    write_model(repository, "generator", GENERATOR, config)
    write_ensemble(
        repository,
        "around",
        [step("generator", {"IN": "IN"}, {"OUT": "OUT"})],
        tensors(IN=("TYPE_INT64", [2])),
        tensors(OUT=("TYPE_INT64", [-1])),
    )


@contextmanager
def unread_over_http(server, model):
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(server.port, receive_buffer_bytes=4096)) for _ in range(2)]
        for connection in idle:
            connection.send(generate(COUNT, binary=True, model=model))
            connection.wait_for_bytes(20)
            assert connection.begins_with(b"HTTP/1.1 200")
        yield


@contextmanager
def unread_over_grpc(server, model):
    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype="INT64", shape=[2]).contents.int64_contents.extend([COUNT, START])
    with ExitStack() as stack:
        for number in range(2):
            channel = stack.enter_context(grpc.insecure_channel(server.grpc_url, [*options, ("channel", number)]))
            call = channel.stream_stream(
                "/inference.GRPCInferenceService/ModelStreamInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
            )
            answers = call(iter([request]), timeout=DEADLINE_S)
            stack.callback(answers.cancel)
            answers.initial_metadata()  # comes with the response
        yield


@pytest.mark.parametrize(
    ("unread", "model"),
    [(unread_over_http, "generator"), (unread_over_grpc, "generator"), (unread_over_http, "around")],
    ids=["HTTP", "gRPC", "ensemble"],
)
def test_slow_clients_make_room_in_the_memory_of_a_model(small_outputs, unread, model):
    """They hold all of it, and less than the server as a whole may hold for clients."""
    refused = []
    with unread(small_outputs, model), connected(small_outputs.port) as honest:

        def served():
            honest.send(generate(COUNT, binary=True))
            reply = honest.reply()
            if reply.status != 200:
                refused.append(reply.error)
            return reply.status == 200

        wait_until(served, "clients that do not read keep out those who do")
    for error in refused:  # until the clients count as slow
        assert "does not fit into the output memory that instance 'generator_0' may use" in error
    assert small_outputs.wait_for("Closing the connection of a slow client")
