"""Trace files: which requests are in them, and what is said about each."""

import json

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import shared_memory

from tests.e2e.observability.conftest import REQUEST
from tests.support.connection import connected, post
from tests.support.gates import wait_until
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.server import serving
from tests.support.trace_files import fragments_in

CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            traced = {"trace": request.trace()} if request.request_id() == "linked" else {}
            call = pb_utils.InferenceRequest(
                model_name="identity", requested_output_names=["OUT"], inputs=request.inputs(), **traced
            )
            answers.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return answers
"""
STREAMING = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(2):
                tensor = pb_utils.get_input_tensor_by_name(request, "IN")
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DYING = """
import os

class TritonPythonModel:
    def execute(self, requests):
        os._exit(3)
"""
ENSEMBLE = """
platform: "ensemble"
input [ {inputs} ] output [ {outputs} ]
ensemble_scheduling {{ step [
  {{ model_name: "identity" model_version: -1
     input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "BETWEEN" }} }},
  {{ model_name: "identity" model_version: -1
     input_map {{ key: "IN" value: "BETWEEN" }} output_map {{ key: "OUT" value: "OUT" }} }}
] }}
"""

HTTP = ["HTTP_RECV_START", "HTTP_RECV_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
EXECUTED = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "INFER_RESPONSE_COMPLETE",
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("traced")
    floats = identity_config("TYPE_FP32", "[ -1 ]")
    for name, code in (("identity", IDENTITY), ("caller", CALLER), ("dying", DYING)):
        write_model(repository, name, code, floats)
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "streaming", STREAMING, identity_config("TYPE_FP32", "[ -1 ]", decoupled))
    (repository / "chain" / "1").mkdir(parents=True)
    text = ENSEMBLE.format(inputs=tensors(IN=("TYPE_FP32", [-1])), outputs=tensors(OUT=("TYPE_FP32", [-1])))
    (repository / "chain" / "config.pbtxt").write_text(text)
    return repository


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "trace.json"


@pytest.fixture(scope="module")
def server(repository, path):
    flags = (f"--trace-config=triton,file={path}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
    with serving(repository, flags=(*flags, "--allow-client-shm=true")) as process:
        yield process


class Trace:
    """What a file says about one id."""

    def __init__(self):
        self.head = {}
        self.times = []
        self.tensors = []

    @property
    def names(self):
        return [name for name, _ in self.times]


def read(path):
    """The traces of a file by id; its fragments have no other members."""
    traces: dict[int, Trace] = {}
    for fragment in fragments_in(path):
        trace = traces.setdefault(fragment["id"], Trace())
        if "timestamps" in fragment:
            assert fragment.keys() == {"id", "timestamps"}
            trace.times += [(each["name"], each["ns"]) for each in fragment["timestamps"]]
        elif "activity" in fragment:
            assert fragment.keys() == {"id", "activity", "tensor"}
            trace.tensors.append((fragment["activity"], fragment["tensor"]))
        else:
            assert not trace.head
            trace.head = fragment
    return traces


class Reader:
    """Waits for traces that were not there before."""

    def __init__(self, path):
        self.path = path
        self.seen = set(read(path))

    def next(self, count):
        found = {}

        def enough():
            found.update({number: trace for number, trace in read(self.path).items() if number not in self.seen})
            return len(found) >= count

        wait_until(enough, lambda: f"{count} traces, not {[trace.head for trace in found.values()]}")
        assert len(found) == count
        self.seen |= set(found)
        return [found[number] for number in sorted(found)]


@pytest.fixture
def reader(path):
    return Reader(path)


@pytest.mark.spec("srv-M13")
def test_a_request_over_http(server, reader):
    for _ in range(3):  # the third head is known
        server.infer("identity", {**REQUEST, "id": "mine"})
    for trace in reader.next(3):
        assert trace.head == {
            "id": trace.head["id"],
            "model_name": "identity",
            "model_version": 1,
            "request_id": "mine",
        }
        assert sorted(trace.names) == sorted([*HTTP, *EXECUTED, "HTTP_SEND_START", "REQUEST_END", "HTTP_SEND_END"])
        assert trace.names[:8] == [*HTTP, *EXECUTED[:6]]
        assert trace.names[-1] == "HTTP_SEND_END"
        times = [ns for _, ns in trace.times]
        assert times == sorted(times)
        assert times[-1] - times[0] < 30e9


@pytest.mark.one_process  # a front end answers what it has begun to read, without a trace
@pytest.mark.spec("srv-M13")
@pytest.mark.parametrize("large", [False, True])
def test_traces_that_are_switched_on_while_a_request_arrives(server, reader, large):
    """The time of an earlier request on the connection is none of its times."""

    def switch(level):
        assert server.request("POST", "/v2/trace/setting", {"trace_level": level}).status == 200

    body = json.dumps(REQUEST).encode() + b" " * (100_000 if large else 0)
    request = post("/v2/models/identity/infer", body)
    with connected(server.port) as connection:
        connection.send(request)
        assert connection.reply().status == 200
        (first,) = reader.next(1)
        for _ in range(3):  # the third head is known
            switch(["OFF"])
            connection.send(request[:-10])
            switch(["TIMESTAMPS"])
            connection.send(request[-10:])
            assert connection.reply().status == 200
            (later,) = reader.next(1)
            assert later.times[0][0] == "HTTP_RECV_START"
            assert later.times[0][1] > first.times[-1][1]


@pytest.mark.spec("srv-M13")
def test_requests_over_grpc(server, reader):
    tensor = grpc_client.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    with grpc_client.InferenceServerClient(server.grpc_url) as client:
        client.infer("identity", [tensor])
        (unary,) = reader.next(1)
        answers = []
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer("streaming", [tensor])
        client.async_stream_infer("identity", [tensor])
        wait_until(lambda: len(answers) == 3, "the stream")
        client.stop_stream()
    assert unary.names[:8] == [*GRPC, *EXECUTED[:6]]
    assert unary.names[-1] == "GRPC_SEND_END"
    streaming, identity = sorted(reader.next(2), key=lambda trace: trace.head["model_name"] == "identity")
    assert streaming.names.count("INFER_RESPONSE_COMPLETE") == 3
    for trace in (streaming, identity):
        assert {*GRPC, *EXECUTED, "GRPC_SEND_START", "GRPC_SEND_END", "REQUEST_END"} == set(trace.names)


@pytest.mark.spec("pb-B15", "srv-M13")
def test_calls_are_linked_if_the_model_says_so(server, reader):
    server.infer("caller", {**REQUEST, "id": "linked"})
    caller, called = sorted(reader.next(2), key=lambda trace: "parent_id" in trace.head)
    assert called.head == {
        "id": called.head["id"],
        "model_name": "identity",
        "model_version": 1,
        "parent_id": caller.head["id"],
    }
    assert set(called.names) == {*EXECUTED, "REQUEST_END"}
    of_caller = dict(caller.times)
    assert of_caller["COMPUTE_INPUT_END"] < called.times[0][1] < called.times[-1][1] < of_caller["COMPUTE_OUTPUT_START"]
    server.infer("caller", {**REQUEST, "id": "alone"})
    (alone,) = reader.next(1)
    assert alone.head["model_name"] == "caller"


@pytest.mark.spec("srv-M13")
def test_steps_of_an_ensemble(server, reader):
    server.infer("chain", REQUEST)
    traces = reader.next(3)
    (whole,) = [trace for trace in traces if trace.head["model_name"] == "chain"]
    steps = [trace for trace in traces if trace is not whole]
    assert [step.head["parent_id"] for step in steps] == [whole.head["id"]] * 2
    assert "COMPUTE_START" not in whole.names
    assert whole.names[-1] == "HTTP_SEND_END"


def test_requests_that_fail_are_traced_too(server, reader):
    assert server.infer("dying", REQUEST).status == 500
    (died,) = reader.next(1)
    assert "COMPUTE_START" not in died.names
    assert died.names[-1] == "HTTP_SEND_END"
    assert server.infer("none", REQUEST).status == 404
    reply = server.request("POST", "/v2/models/identity/generate", {"IN": [1.0, 2.0]})
    assert reply.status == 200
    (generated,) = reader.next(1)
    assert generated.names[-1] == "HTTP_SEND_END"


@pytest.mark.spec("srv-M13")
def test_rate_count_and_models(server, reader):
    change = {"trace_rate": "3", "trace_count": "2"}
    assert server.request("POST", "/v2/models/identity/trace/setting", change).status == 200
    try:
        for number in range(12):
            server.infer("identity", {**REQUEST, "id": str(number)})
        server.infer("caller", {**REQUEST, "id": "other"})
        traces = reader.next(3)
        assert [trace.head["request_id"] for trace in traces] == ["2", "5", "other"]
        assert server.get("/v2/models/identity/trace/setting").json["trace_count"] == "0"
    finally:
        server.request("POST", "/v2/models/identity/trace/setting", {"trace_rate": None, "trace_count": None})


@pytest.mark.spec("srv-M13")
def test_tensors(server, reader):
    levels = {"trace_level": ["TENSORS"]}
    assert server.request("POST", "/v2/models/identity/trace/setting", levels).status == 200
    try:
        server.infer("identity", REQUEST)
        large = {"name": "IN", "datatype": "FP32", "shape": [20_000], "data": [0] * 20_000}
        server.infer("identity", {"inputs": [large]})
    finally:
        server.request("POST", "/v2/models/identity/trace/setting", {"trace_level": None})
    small, cut = reader.next(2)
    assert {tensor["bytes_left_out"] for _, tensor in cut.tensors} == {80_000 - 65_536}
    described = {"data": "1.0,2.0", "shape": "2", "dtype": "FP32"}
    assert sorted(small.tensors, key=str) == [
        ("TENSOR_BACKEND_INPUT", {"name": "IN", **described}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "OUT", **described}),
        ("TENSOR_QUEUE_INPUT", {"name": "IN", **described}),
    ]


@pytest.mark.spec("srv-M13")
def test_tensors_in_shared_memory_of_the_client(server, reader):
    levels = {"trace_level": ["TIMESTAMPS", "TENSORS"]}
    region = shared_memory.create_shared_memory_region("traced", "/pybackend-traced", 16)
    try:
        assert server.request("POST", "/v2/models/identity/trace/setting", levels).status == 200
        shared_memory.set_shared_memory_region(region, [np.ones(2, np.float32)])
        with grpc_client.InferenceServerClient(server.grpc_url) as client:
            client.register_system_shared_memory("traced", "/pybackend-traced", 16)
            given, wanted = grpc_client.InferInput("IN", [2], "FP32"), grpc_client.InferRequestedOutput("OUT")
            given.set_shared_memory("traced", 8)
            wanted.set_shared_memory("traced", 8, 8)
            client.infer("identity", [given], outputs=[wanted])
            client.unregister_system_shared_memory("traced")
    finally:
        shared_memory.destroy_shared_memory_region(region)
        server.request("POST", "/v2/models/identity/trace/setting", {"trace_level": None})
    (trace,) = reader.next(1)
    assert trace.names[-1] == "GRPC_SEND_END"
    found = [tensor for activity, tensor in trace.tensors if activity != "TENSOR_BACKEND_OUTPUT"]
    assert [(tensor["data"], tensor["bytes_left_out"]) for tensor in found] == [("", 8)] * 2


@pytest.mark.spec("srv-M13")
def test_a_file_for_every_so_many_traces(models, tmp_path):
    path = tmp_path / "trace"
    flags = (f"--trace-file={path}", "--trace-level=TIMESTAMPS", "--trace-rate=1", "--trace-log-frequency=2")
    with serving(models, flags=flags) as server:
        for _ in range(5):
            server.infer("identity", REQUEST)
        assert "--trace-file, --trace-level, --trace-rate, --trace-log-frequency: --trace-config has replaced" in (
            server.output
        )
        assert server.stop() == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["trace.0", "trace.1", "trace.2"]
    assert [len(read(tmp_path / f"trace.{index}")) for index in range(3)] == [2, 2, 1]


def test_a_full_disk_ends_nothing(models, tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    flags = (f"--trace-config=triton,file={tmp_path}/full", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
    with serving(models, flags=flags) as server:
        for _ in range(3):
            assert server.infer("identity", REQUEST).status == 200
        server.wait_for('W.*"traces are lost: the trace file .*/full cannot be written: No space left on device"')
        assert server.stop() == 0
        assert server.output.count("traces are lost") == 1
