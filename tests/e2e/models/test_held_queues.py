"""The variables that hold queues, for tests of batchers: so many requests wait before the first one is executed."""

import json
import os
from contextlib import ExitStack

import pytest

from tests.support.connection import connected, post
from tests.support.gates import wait_until
from tests.support.repositories import tensors, write_model
from tests.support.server import ServerProcess, serving

BATCH = """
class TritonPythonModel:
    def execute(self, requests):
        text = " ".join(request.request_id() for request in requests)
        out = pb_utils.Tensor("OUT", np.array([[text]], dtype=object))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""
"""Tells each request the ids of its batch."""

CONFIG = f"""
backend: "python"
max_batch_size: 8
input [ {tensors(IN=("TYPE_FP32", [1]))} ] output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
instance_group {{ count: 1 kind: KIND_CPU }}
"""


def environment(**variables):
    return {**os.environ, **variables}


@pytest.mark.spec("srv-S25")
def test_a_batcher_waits_for_so_many_requests_once(tmp_path):
    """Of a model with sequences, so many in slots, and so many of sequences without a slot."""
    write_model(tmp_path, "dynamic", BATCH, f"{CONFIG} dynamic_batching {{ }}")
    direct = "sequence_batching { direct { } max_sequence_idle_microseconds: 60000000 }"
    write_model(tmp_path, "sequences", BATCH, CONFIG.replace("size: 8", "size: 2") + direct)
    env = environment(TRITONSERVER_DELAY_SCHEDULER="3", TRITONSERVER_BACKLOG_DELAY_SCHEDULER="1")
    with serving(tmp_path, env=env) as server, ExitStack() as stack:

        def send(model, name, **parameters):
            connection = stack.enter_context(connected(server.port))
            tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}
            document = {"id": name, "inputs": [tensor], "parameters": parameters}
            connection.send(post(f"/v2/models/{model}/infer", json.dumps(document).encode()))
            server.get("/v2/health/live")
            return connection

        def waiting(model, count):
            sample = f'nv_inference_pending_request_count{{model="{model}",version="1"}}'
            wait_until(lambda: server.metrics()[sample] == count, f"{sample} never became {count}")

        def told(connection):
            return connection.reply().json["outputs"][0]["data"][0]

        held = []
        for number, name in enumerate("ab", 1):
            held.append(send("dynamic", name))
            waiting("dynamic", number)  # or clients of two front ends may overtake each other
        held.append(send("dynamic", "c"))
        assert [told(connection) for connection in held] == ["a b c"] * 3
        assert told(send("dynamic", "d")) == "d"

        held = []
        for number, (name, key) in enumerate((("s", 1), ("s", 2), ("t", 1), ("t", 2)), 1):
            held.append(send("sequences", f"{name}{key}", sequence_id=key, sequence_start=name == "s"))
            waiting("sequences", number)
        last = send("sequences", "s3", sequence_id=3, sequence_start=True, sequence_end=True)
        assert [told(connection) for connection in held] == ["s1 s2", "s1 s2", "t1 t2", "t1 t2"]
        for key in (1, 2):
            send("sequences", f"e{key}", sequence_id=key, sequence_end=True)
        assert "s3" in told(last)


def test_a_value_that_is_no_number_is_refused(tmp_path):
    write_model(tmp_path, "dynamic", BATCH, f"{CONFIG} dynamic_batching {{ }}")
    server = ServerProcess([tmp_path], env=environment(TRITONSERVER_DELAY_SCHEDULER="many"))
    try:
        server.wait_for(
            "the environment variable TRITONSERVER_DELAY_SCHEDULER must be a whole number of requests, not 'many'"
        )
    finally:
        server.stop()
