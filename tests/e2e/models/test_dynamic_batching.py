"""Dynamic batching as clients and models see it: what is executed together, in which order, and what is refused."""

import json
import select
import time
from contextlib import ExitStack

import pytest

from tests.support.connection import connected, post
from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

WAITING = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]
        self.instance = args["model_instance_name"]

    def execute(self, requests):
        ids = [request.request_id() for request in requests]
        if ids[0].startswith("hold"):
            pass_gate(self.directory, ids[0])
        text = __import__("json").dumps({
            "batch": ids, "instance": self.instance, "inputs": [tensor.name() for tensor in requests[0].inputs()]
        })
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[text.encode()]] * len(r.inputs()[0].as_numpy()), object))])
            for r in requests
        ]
"""
)
"""Waits at the gate of its first request's id if that holds it, and tells each request who it was executed with."""

FIXED = f"input [ {tensors(IN=('TYPE_FP32', [1]))} ]"
OUTPUT = f"output [ {tensors(OUT=('TYPE_STRING', [1]))} ]"

MODELS = {
    "plain": f"{FIXED} dynamic_batching {{ }}",
    "preferred": f"{FIXED} dynamic_batching {{ preferred_batch_size: [ 3, 5 ] }}",
    "delayed": f"{FIXED} dynamic_batching {{ max_queue_delay_microseconds: 150000 preferred_batch_size: [ 4 ] }}",
    "ordered": f"{FIXED} dynamic_batching {{ preserve_ordering: true }} instance_group {{ count: 2 kind: KIND_CPU }}",
    "priorities": f"{FIXED} dynamic_batching {{ priority_levels: 3 default_priority_level: 2 }}",
    "short_queue": f"{FIXED} dynamic_batching {{ default_queue_policy {{ max_queue_size: 2 }} }}",
    "impatient": f"""{FIXED} dynamic_batching {{ default_queue_policy {{
        default_timeout_microseconds: 60000000 allow_timeout_override: true }} }}""",
    "patient": f"""{FIXED} dynamic_batching {{ default_queue_policy {{ allow_timeout_override: true }} }}""",
    "lenient": f"""{FIXED} dynamic_batching {{ default_queue_policy {{
        default_timeout_microseconds: 1000 timeout_action: DELAY }} }}""",
    "variable": "input [ { name: \"IN\" data_type: TYPE_FP32 dims: [ -1 ] } ] dynamic_batching { }",
    "ragged": "input [ { name: \"IN\" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ] dynamic_batching { }",
    "optional": """input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] },
        { name: "MORE" data_type: TYPE_FP32 dims: [ 1 ] optional: true } ] dynamic_batching { }""",
    "for_ever": f"{FIXED} dynamic_batching {{ max_queue_delay_microseconds: {2**64 - 1} }}",
    "for_others": f"""{FIXED} dynamic_batching {{ }}
        batch_input {{ kind: BATCH_ELEMENT_COUNT target_name: "COUNT" data_type: TYPE_INT32 source_input: "IN" }}
        batch_output {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "OUT" source_input: "IN" }}
        optimization {{ priority: PRIORITY_MAX cuda {{ graphs: true }} eager_batching: true
            execution_accelerators {{ gpu_execution_accelerator {{ name: "tensorrt" }} }} }}
        instance_group {{ kind: KIND_CPU profile: "0" }}""",
}  # fmt: skip


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    repository = tmp_path_factory.mktemp("batching")
    return {
        name: write_model(repository, name, WAITING, f'backend: "python" max_batch_size: 8 {OUTPUT} {text}')
        for name, text in MODELS.items()
    }


@pytest.fixture(scope="module")
def server(directories):
    with serving(directories["plain"].parent) as server:
        yield server


def request(model, request_id, size=1, width=1, names=("IN",), **parameters):
    inputs = [{"name": name, "datatype": "FP32", "shape": [size, width], "data": [0] * size * width} for name in names]
    return post(
        f"/v2/models/{model}/infer",
        json.dumps({"id": request_id, "inputs": inputs, "parameters": parameters}).encode(),
    )


def told(reply):
    assert reply.status == 200, reply.body
    return json.loads(reply.json["outputs"][0]["data"][0])


class Queue:
    """A model whose instance is held by one request, while others queue up."""

    def __init__(self, server, stack, model, directory):
        self._server = server
        self._stack = stack
        self._model = model
        self._sample = f'nv_inference_pending_request_count{{model="{model}",version="1"}}'
        self._held = f"hold{time.monotonic_ns()}"
        self._gate = Gate(directory, self._held)
        stack.callback(self._gate.open)  # else a test that fails would keep the server from ending
        self._waiting = []
        self._holder = self._send(self._held)
        self._gate.wait_reached(1)

    def _send(self, request_id, **members):
        connection = self._stack.enter_context(connected(self._server.port))
        connection.send(request(self._model, request_id, **members))
        self._server.get("/v2/health/live")  # the server has it: requests arrive in this order
        return connection

    def add(self, *request_ids, **members):
        """Send requests that have to wait."""
        self._waiting += [self._send(request_id, **members) for request_id in request_ids]
        return self._waiting[-len(request_ids) :]

    def wait_for_pending(self, count):
        wait_until(lambda: self._server.metrics()[self._sample] == count, f"{self._sample} never became {count}")

    def batches(self):
        """Let the instance go; the batches in which those that waited were executed, each named by its ids."""
        self._gate.open()
        assert told(self._holder.reply())["batch"] == [self._held]
        seen = []
        for connection in self._waiting:
            batch = told(connection.reply())["batch"]
            if batch not in seen:
                seen.append(batch)
        return ["".join(batch) for batch in seen]


@pytest.fixture
def queue(server, directories):
    with ExitStack() as stack:
        yield lambda model: Queue(server, stack, model, directories[model])


@pytest.mark.spec("srv-S05", "pb-E01")
def test_requests_that_wait_are_executed_together(server, queue):
    held = queue("plain")
    held.add(*"abcdefghij")
    assert held.batches() == ["abcdefgh", "ij"]
    reasons = {
        reason: server.metrics()[f'pybackend_batches_total{{model="plain",reason="{reason}",version="1"}}']
        for reason in ("full", "preferred", "delay", "idle")
    }
    assert reasons["full"] >= 1
    assert reasons["idle"] >= 2
    assert reasons["delay"] == 0


@pytest.mark.spec("srv-S05")
def test_requests_keep_their_own_batch_dimension(queue):
    held = queue("plain")
    held.add("a", size=3)
    held.add("b", size=4)
    held.add("c", size=2)
    assert held.batches() == ["ab", "c"]


@pytest.mark.spec("srv-S06")
def test_preferred_sizes(queue):
    held = queue("preferred")
    held.add(*"abcdefghij")
    # As many as the largest preferred size that can be had: 5 of the first 8, 5 of the rest.
    assert held.batches() == ["abcde", "fghij"]


@pytest.mark.spec("srv-S07")
def test_a_lone_request_waits_for_the_delay(server):
    with connected(server.port) as connection:
        began_s = time.monotonic()
        connection.send(request("delayed", "alone"))
        assert told(connection.reply())["batch"] == ["alone"]
        assert time.monotonic() - began_s >= 0.15


@pytest.mark.spec("srv-S07")
def test_a_batch_that_is_complete_does_not_wait(server):
    sample = 'pybackend_batches_total{model="delayed",reason="preferred",version="1"}'
    before = server.metrics()[sample]
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(4)]
        for name, connection in zip("abcd", connections, strict=True):
            connection.send(request("delayed", name))
        batches = [sorted(told(connection.reply())["batch"]) for connection in connections]
    if batches == [list("abcd")] * 4:  # else this machine took longer than the delay to read four requests
        assert server.metrics()[sample] == before + 1


def test_a_delay_without_end(server):
    """Nothing is computed with it that it is too large for."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(8)]
        for number, connection in enumerate(connections):
            connection.send(request("for_ever", str(number)))
        assert {len(told(connection.reply())["batch"]) for connection in connections} == {8}


@pytest.mark.spec("srv-S22", "srv-S23")
def test_what_other_backends_are_told_is_taken_and_has_no_effect(server, queue):
    """Tensors that are computed over a batch, graphs, accelerators and profiles."""
    held = queue("for_others")
    (connection, _) = held.add("a", "b")
    assert [tensor["name"] for tensor in server.get("/v2/models/for_others").json["inputs"]] == ["IN"]
    held._gate.open()
    answer = told(connection.reply())
    assert (answer["batch"], answer["inputs"]) == (["a", "b"], ["IN"])


@pytest.mark.spec("srv-S08")
def test_responses_leave_in_order_whoever_is_ready_first(server, queue):
    held = queue("ordered")
    (later,) = held.add("later")
    # The other instance has executed it, but its answer may not overtake the first one.
    wait_until(
        lambda: server.metrics()['nv_inference_exec_count{model="ordered",version="1"}'] >= 1, "nothing was executed"
    )
    assert select.select([later.socket], [], [], 0)[0] == []
    assert held.batches() == ["later"]


@pytest.mark.spec("srv-S09", "srv-H20")
def test_priorities(queue):
    held = queue("priorities")
    held.add(*"abc", priority=3, size=4)
    held.add("d", size=4)  # the default level, 2
    held.add("e", priority=1, size=4)
    held.add("f", priority=7, size=4)  # no level: the default one
    assert sorted(held.batches()) == sorted(["ed", "fa", "bc"])


@pytest.mark.spec("srv-S10", "srv-S20")
def test_a_full_queue_refuses_at_once(server, queue):
    held = queue("short_queue")
    held.add(*"ab")
    held.wait_for_pending(2)
    refused = server.request(
        "POST", "/v2/models/short_queue/infer", request("short_queue", "c").partition(b"\r\n\r\n")[2]
    )
    assert refused.status == 503
    assert refused.error.startswith("[request id: c] Exceeds maximum queue size")
    assert held.batches() == ["ab"]


@pytest.mark.spec("srv-S10", "srv-H20", "pb-C03")
def test_requests_expire_although_the_instance_is_busy(queue):
    held = queue("impatient")
    (expiring,) = held.add("a", timeout=5000)
    reply = expiring.reply()
    assert reply.status == 503
    assert reply.error.startswith("[request id: a] Request timeout expired")
    held._waiting.remove(expiring)
    held.add("b", timeout=90_000_000)  # a longer time than the default is not granted, and not needed
    assert held.batches() == ["b"]


@pytest.mark.spec("srv-S10")
def test_a_clients_time_needs_a_default_to_be_shorter_than(queue):
    held = queue("patient")
    held.add("a", timeout=1)
    held.wait_for_pending(1)
    assert held.batches() == ["a"]


@pytest.mark.spec("srv-S10")
def test_those_who_are_late_may_be_let_pass(queue):
    held = queue("lenient")
    held.add("a", "b")
    held.wait_for_pending(2)
    assert held.batches() == ["ab"]


@pytest.mark.spec("srv-S11")
def test_variable_shapes_must_be_equal_within_a_batch(queue):
    held = queue("variable")
    held.add("a", "b", width=2)
    held.add("c", width=3)
    held.add("d", width=2)
    assert held.batches() == ["ab", "c", "d"]


@pytest.mark.spec("srv-S11")
def test_ragged_batches(queue):
    held = queue("ragged")
    held.add("a", "b", width=2)
    held.add("c", width=3)
    assert held.batches() == ["abc"]


@pytest.mark.spec("srv-S11")
def test_optional_inputs_must_be_the_same_within_a_batch(queue):
    held = queue("optional")
    held.add("a", "b")
    held.add("c", names=("IN", "MORE"))
    held.add("d")
    assert held.batches() == ["ab", "c", "d"]


@pytest.mark.spec("srv-S12")
def test_a_batch_that_is_too_large_is_refused(server):
    body = request("plain", "x", size=9).partition(b"\r\n\r\n")[2]
    reply = server.request("POST", "/v2/models/plain/infer", body)
    assert reply.status == 400
    assert "inference request batch-size must be <= 8 for 'plain'" in reply.error


def test_a_client_that_leaves_is_not_executed(server, queue):
    held = queue("plain")
    (leaver,) = held.add("leaver")
    held.add("a")
    held.wait_for_pending(2)
    held._waiting.remove(leaver)
    leaver.reset()
    held.wait_for_pending(1)
    assert held.batches() == ["a"]
